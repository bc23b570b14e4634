/* SPDX-License-Identifier: Apache-2.0 */
/* A second pass over the YAML text that finds the line of a key: for messages that name it. */
#include "daemon/yamlpos.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct kvpd_yamlpos {
	yaml_document_t doc;
};

static const char *problem_of(const yaml_parser_t *parser)
{
	return parser->problem ? parser->problem : "this is not YAML";
}

/* A second document would be ignored by libcyaml; what is written is to count, or be refused. */
static int only_document(yaml_parser_t *parser, unsigned *ret_line, const char **ret_problem)
{
	yaml_document_t more;
	yaml_node_t *root;

	if (!yaml_parser_load(parser, &more)) {
		*ret_line = (unsigned)parser->problem_mark.line + 1;
		*ret_problem = problem_of(parser);
		return -EINVAL;
	}
	root = yaml_document_get_root_node(&more);
	if (root) {
		*ret_line = (unsigned)root->start_mark.line + 1;
		*ret_problem = "there is a second document; kvpoold reads one per file";
	}
	yaml_document_delete(&more);
	return root ? -EINVAL : 0;
}

int kvpd_yamlpos_new(const char *data, size_t bytes, unsigned *ret_line, const char **ret_problem,
	struct kvpd_yamlpos **ret_pos)
{
	struct kvpd_yamlpos *pos = calloc(1, sizeof(*pos));
	yaml_parser_t parser;
	int r;

	if (!pos)
		return -ENOMEM;
	if (!yaml_parser_initialize(&parser)) {
		free(pos);
		return -ENOMEM;
	}
	yaml_parser_set_input_string(&parser, (const unsigned char *)data, bytes);
	if (yaml_parser_load(&parser, &pos->doc)) {
		r = only_document(&parser, ret_line, ret_problem);
		if (r < 0)
			yaml_document_delete(&pos->doc);
	} else {
		*ret_line = (unsigned)parser.problem_mark.line + 1;
		*ret_problem = problem_of(&parser);
		r = parser.error == YAML_MEMORY_ERROR ? -ENOMEM : -EINVAL;
	}
	yaml_parser_delete(&parser);
	if (r < 0) {
		free(pos);
		return r;
	}
	*ret_pos = pos;
	return 0;
}

struct kvpd_yamlpos *kvpd_yamlpos_free(struct kvpd_yamlpos *pos)
{
	if (pos) {
		yaml_document_delete(&pos->doc);
		free(pos);
	}
	return NULL;
}

static int is_scalar(const yaml_node_t *n, const char *text, size_t len)
{
	return n && n->type == YAML_SCALAR_NODE && n->data.scalar.length == len &&
	       !memcmp(n->data.scalar.value, text, len);
}

/* One step down. *line becomes that of the key, or of the item. */
static yaml_node_t *child(
	struct kvpd_yamlpos *pos, yaml_node_t *node, const char *step, size_t len, unsigned *line)
{
	if (node->type == YAML_MAPPING_NODE) {
		yaml_node_pair_t *pair = node->data.mapping.pairs.start;

		for (; pair < node->data.mapping.pairs.top; pair++) {
			yaml_node_t *key = yaml_document_get_node(&pos->doc, pair->key);

			if (!is_scalar(key, step, len))
				continue;
			*line = (unsigned)key->start_mark.line + 1;
			return yaml_document_get_node(&pos->doc, pair->value);
		}
	} else if (node->type == YAML_SEQUENCE_NODE) {
		yaml_node_item_t *items = node->data.sequence.items.start;
		size_t n = (size_t)(node->data.sequence.items.top - items);
		size_t i = strtoul(step, NULL, 10);
		yaml_node_t *item = i < n ? yaml_document_get_node(&pos->doc, items[i]) : NULL;

		if (item)
			*line = (unsigned)item->start_mark.line + 1;
		return item;
	}
	return NULL;
}

/* The deepest node of the path that is there, and its line; *ret_rest: what is left of the path. */
static yaml_node_t *walk(
	struct kvpd_yamlpos *pos, const char *path, unsigned *ret_line, const char **ret_rest)
{
	yaml_node_t *node = yaml_document_get_root_node(&pos->doc), *next = node;

	*ret_line = node ? (unsigned)node->start_mark.line + 1 : 0;
	while (next && *path) {
		size_t len = strcspn(path, ".");

		next = child(pos, node, path, len, ret_line);
		if (!next)
			break;
		node = next;
		path += len + (path[len] == '.');
	}
	*ret_rest = path;
	return node;
}

unsigned kvpd_yamlpos_line(struct kvpd_yamlpos *pos, const char *path)
{
	unsigned line;

	walk(pos, path, &line, &path);
	return line;
}

bool kvpd_yamlpos_empty(struct kvpd_yamlpos *pos, const char *path)
{
	unsigned line;
	const yaml_node_t *node = walk(pos, path, &line, &path);

	return node && !*path && node->type == YAML_SCALAR_NODE && !node->data.scalar.length;
}

unsigned kvpd_yamlpos_find_key(struct kvpd_yamlpos *pos, const char *key, unsigned from)
{
	unsigned best = 0;

	for (yaml_node_t *n = pos->doc.nodes.start; n < pos->doc.nodes.top; n++) {
		if (n->type != YAML_MAPPING_NODE)
			continue;
		for (yaml_node_pair_t *p = n->data.mapping.pairs.start;
			p < n->data.mapping.pairs.top; p++) {
			yaml_node_t *k = yaml_document_get_node(&pos->doc, p->key);
			unsigned line = k ? (unsigned)k->start_mark.line + 1 : 0;

			if (is_scalar(k, key, strlen(key)) && line >= from &&
				(!best || line < best))
				best = line;
		}
	}
	return best;
}
