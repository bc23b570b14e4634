/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench suite: perplexity, accuracy, memory, latency and throughput one after the other, by the commands that measure each:
 * in processes of their own, so that one that cannot be measured costs no other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/kvbench/bench.h"
#include "tools/kvbench/kvbench.h"

#define CODECS   "native,int8,4bit,3bit,2bit"
#define TEXT_MAX 256u
#define ARGS_MAX (16u + TEXT_MAX) /* of words: each may have an option before it */

struct suite {
	const char *codec, *model, *text, *only;
	bool json;
};

struct part {
	const char *name, *help;
	int (*run)(int argc, char **argv);
	unsigned int takes; /* TAKES_* */
	const char *args[7];
};

#define TAKES_CODEC 1u /* the list */
#define TAKES_EACH  2u /* an option for each */
#define TAKES_MODEL 4u /* and is left out without one */

static const struct part parts[] = {
	{ "perplexity", "of a model on a text, with its cache in codecs", kvbench_quality,
		TAKES_CODEC | TAKES_MODEL, { "quality" } },
	{ "accuracy", "letters of a passage that such a model recalls", kvbench_quality,
		TAKES_CODEC | TAKES_MODEL, { "quality", "--recall", "20", "--ctx", "300" } },
	{ "memory", "what a cache takes in codecs", kvbench_estimate, TAKES_EACH, { "estimate" } },
	{ "latency", "of one step of attention over codecs", kvbench_attention, TAKES_CODEC,
		{ "attention", "--ctx", "4096" } },
	{ "match", "latency of a match and its lease", kvbench_hotpath, 0,
		{ "hotpath", "--blocks", "100000" } },
	{ "throughput", "of codecs, with their bytes and errors", kvbench_codecs, TAKES_CODEC,
		{ "codecs" } },
	{ "put", "throughput of storing blocks", kvbench_put, 0, { "put" } },
};
#define N_PARTS (sizeof parts / sizeof *parts)

/* Is the word one of the list? */
static bool listed(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, word, n) && (at[n] == ',' || !at[n]))
			return true;
	return false;
}

/* All that is asked for is there. */
static bool known(const char *only)
{
	char word[TEXT_MAX];

	for (const char *at = only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		bool found = false;

		snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
		for (size_t i = 0; i < N_PARTS; i++)
			found = found || !strcmp(parts[i].name, word);
		if (found)
			continue;
		fprintf(stderr, "kvbench suite: there is no part '%s': it has", word);
		for (size_t i = 0; i < N_PARTS; i++)
			fprintf(stderr, "%s %s", i ? "," : "", parts[i].name);
		fputc('\n', stderr);
		return false;
	}
	return true;
}

/* In the child: the command's arguments, of which those that it changes are its own. */
static int run_part(const struct part *p, const struct suite *s)
{
	static char codec[TEXT_MAX];
	char *argv[ARGS_MAX];
	int argc = 0;

	for (size_t i = 0; i < sizeof p->args / sizeof *p->args && p->args[i]; i++)
		argv[argc++] = (char *)(uintptr_t)p->args[i];
	if (p->takes & TAKES_MODEL) {
		argv[argc++] = (char *)(uintptr_t) "--model";
		argv[argc++] = (char *)(uintptr_t)s->model;
		argv[argc++] = (char *)(uintptr_t) "--text";
		argv[argc++] = (char *)(uintptr_t)s->text;
	}
	snprintf(codec, sizeof codec, "%s", s->codec);
	if (p->takes & TAKES_CODEC) {
		argv[argc++] = (char *)(uintptr_t) "--codec";
		argv[argc++] = codec;
	}
	for (char *at = p->takes & TAKES_EACH ? strtok(codec, ",") : NULL; at;
		at = strtok(NULL, ",")) {
		argv[argc++] = (char *)(uintptr_t) "--codec";
		argv[argc++] = at;
	}
	if (s->json)
		argv[argc++] = (char *)(uintptr_t) "--json";
	argv[argc] = NULL;
	return p->run(argc, argv);
}

/* Its standard output, of which nothing is shown before it has ended well: a document is whole or it is not there. */
static int measure(const struct part *p, const struct suite *s, FILE **ret_out)
{
	FILE *out = tmpfile();
	int status = 1;
	pid_t pid;

	fflush(stdout);
	pid = out ? fork() : -1;
	if (pid == 0) {
		if (dup2(fileno(out), STDOUT_FILENO) < 0)
			_exit(1);
		status = run_part(p, s);
		fflush(stdout);
		_exit(status);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid)
		status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	if (out)
		rewind(out);
	*ret_out = out;
	return pid > 0 ? status : 1;
}

static void show(const struct part *p, const struct suite *s, int status, FILE *out)
{
	char line[4096];
	size_t n;

	if (s->json && status) {
		fputs("null\n", stdout);
		return;
	}
	while (out && (n = fread(line, 1, sizeof line, out)) > 0)
		fwrite(line, 1, n, stdout);
	if (status)
		printf("%s could not be measured\n", p->name);
	if (!s->json)
		fputc('\n', stdout);
}

static int run_all(const struct suite *s)
{
	int worst = 0, shown = 0;

	for (size_t i = 0; i < N_PARTS; i++) {
		const struct part *p = &parts[i];
		FILE *out;
		int status;

		if ((s->only && !listed(s->only, p->name)) || (p->takes & TAKES_MODEL && !s->model))
			continue;
		if (s->json)
			printf("%s\"%s\":", shown++ ? "," : "{", p->name);
		else
			printf("== %s: %s (kvbench %s)\n", p->name, p->help, p->args[0]);
		status = measure(p, s, &out);
		show(p, s, status, out);
		if (out)
			fclose(out);
		worst = status > worst ? status : worst;
	}
	if (s->json)
		puts(shown ? "}" : "{}");
	return worst ? 1 : 0;
}

int kvbench_suite(int argc, char **argv)
{
	struct suite s = { .codec = CODECS };
	const struct bench_option options[] = {
		{ .name = "codec",
			.help = "codecs and presets (default " CODECS ")",
			.text = &s.codec,
			.takes = "NAME[,NAME...]" },
		{ .name = "model",
			.help = "of perplexity and accuracy, which are left out without one",
			.text = &s.model,
			.takes = "DIR" },
		{ .name = "text", .help = "that goes with it", .text = &s.text, .takes = "FILE" },
		{ .name = "only",
			.help = "of perplexity, accuracy, memory, latency, match, throughput, put",
			.text = &s.only,
			.takes = "PART[,PART...]" },
		{ .name = "json",
			.help = "one JSON object on stdout: a document for each part",
			.flag = &s.json },
	};
	int r = bench_parse(argc, argv,
		"Perplexity, accuracy, memory, latency and throughput, one after the other, as the "
		"other\n"
		"commands measure them. Takes minutes.",
		options, sizeof options / sizeof *options);

	if (r <= 0)
		return r ? 2 : 0;
	if (!s.model != !s.text) {
		fputs("kvbench suite: --model DIR goes with --text FILE\n", stderr);
		return 2;
	}
	if (strlen(s.codec) >= TEXT_MAX) {
		fputs("kvbench suite: --codec is too long\n", stderr);
		return 2;
	}
	return known(s.only) ? run_all(&s) : 2;
}
