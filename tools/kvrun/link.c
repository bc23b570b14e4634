/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the daemon and opening a space there, as often as it takes. */
#include "tools/kvrun/kvr_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvr_link_init(struct kvr_link *link, const char *socket)
{
	*link = (struct kvr_link){ .socket = socket ? strdup(socket) : NULL };
	return socket && !link->socket ? -ENOMEM : 0;
}

void kvr_link_done(struct kvr_link *link)
{
	kvp_space_close(link->space);
	kvp_close(link->client);
	free(link->socket);
	*link = (struct kvr_link){ 0 };
}

int kvr_link_client(struct kvr_link *link)
{
	struct kvp_open_opts opts = { .size = sizeof(opts),
		.socket = link->socket,
		.name = "kvrun",
		.error = link->why,
		.error_bytes = sizeof(link->why) };

	if (link->client || kvp_open(&opts, &link->client) == 0)
		return 0;
	opts.flags = KVP_OPEN_LAZY;
	return kvp_open(&opts, &link->client);
}

static int open_space(
	struct kvr_link *link, const struct kvp_space_desc *desc, uint64_t block_bytes)
{
	struct kvp_space_props info = { .size = sizeof(info) };
	struct kvp_space *space;
	int r = kvp_space_open(link->client, desc, KVP_DEFAULT_TIMEOUT, &space);

	if (r < 0)
		return r;
	r = kvp_space_info(space, &info);
	if (r == 0 && info.block_bytes != block_bytes)
		r = -EPROTO;
	if (r < 0) {
		kvp_space_close(space);
		return r;
	}
	link->space = space;
	return 0;
}

/* In words: what strerror() says of a floor helps nobody. */
static const char *why_of(int r, const struct kvp_space_desc *desc)
{
	int floor = desc->floor_k || desc->floor_v;

	if (r == -EINVAL && floor)
		return "this model's blocks cannot have that floor: see --floor in kvrun(1)";
	if (r == -ENOENT && floor)
		return "the floor needs a calibration of this model, and the daemon has none: see "
		       "`calibrations` in kvpoold.yaml(5)";
	return r < 0 ? strerror(-r) : "the daemon is gone";
}

int kvr_link_join(struct kvr_link *link, const struct kvp_space_desc *desc, uint64_t block_bytes)
{
	struct kvp_space_props info = { .size = sizeof(info) };
	char why[sizeof(link->why)] = "";
	int r = kvr_link_client(link);

	if (r == 0 && !link->space)
		r = open_space(link, desc, block_bytes);
	if (r == 0)
		r = kvp_space_info(link->space, &info);
	if (r == 0 && info.attached) {
		link->why[0] = '\0';
		return 1;
	}
	if (link->client && kvp_last_error(link->client, why, sizeof(why)) == 0 && why[0])
		memcpy(link->why, why, sizeof(why));
	else if (!link->why[0])
		snprintf(link->why, sizeof(link->why), "%s", why_of(r, desc));
	return 0;
}
