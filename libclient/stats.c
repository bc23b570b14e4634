/* SPDX-License-Identifier: Apache-2.0 */
/* Counters: what this client looked up, over all daemons it was attached to, and its tenant's. */
#include "libclient/ring.h"

/* lock and ring_lock held. */
static void sum_up(struct kvp_client *c, struct kvp_counters *s)
{
	struct attachment *att = kvp_load_seq(&c->att);
	uint64_t blind = kvp_load_relaxed(&c->blind_lookups);

	*s = c->past;
	for (uint32_t i = 0; i < N_ATTACHMENTS; i++)
		if (c->attachments[i])
			attachment_count(c->attachments[i], s);
	s->misses += blind;
	s->tokens_asked += kvp_load_relaxed(&c->blind_tokens);
	s->decoded_blocks = kvp_load_relaxed(&c->decoded);
	s->decode_failures = kvp_load_relaxed(&c->undecoded);
	s->lookups = s->hits + s->partial_hits + s->misses;
	s->reattached = c->joined ? c->joined - 1 : 0;
	if (att) {
		const struct kvp_catalog_stats *t = &att->view.cat->stats;

		s->blocks = kvp_load_relaxed(&t->blocks);
		s->payload_bytes = kvp_load_relaxed(&t->payload_bytes);
		s->evictions = kvp_load_relaxed(&t->evictions);
		s->epoch = att->epoch;
		s->attached = 1;
		s->stuck = ring_stuck(att) || att->deaf;
	}
}

int kvp_stats(struct kvp_client *client, struct kvp_counters *ret_stats)
{
	struct kvp_counters s;

	if (!client || !ret_stats)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	pthread_mutex_lock(&client->lock);
	pthread_mutex_lock(&client->ring_lock);
	sum_up(client, &s);
	pthread_mutex_unlock(&client->ring_lock);
	pthread_mutex_unlock(&client->lock);
	return result_give(ret_stats, &s, sizeof(s));
}
