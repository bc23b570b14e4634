/* SPDX-License-Identifier: Apache-2.0 */
/* The answers to status, tenants, clients, spaces and devices, made from the ledger's figures. */
#include "daemon/control/figures.h"

#include <stdio.h>
#include <string.h>

#include "daemon/answer.h"

static json_t *portions_json(const struct kvpd_figures *f)
{
	static const char *const name[KVPD_PORTION_KINDS] = {
		[KVPD_PORTION_TURN] = "turn",
		[KVPD_PORTION_CHORE] = "chore",
		[KVPD_PORTION_CALL] = "call",
		[KVPD_PORTION_JOB] = "job",
		[KVPD_PORTION_ROUND] = "round",
	};
	json_t *o = json_object(), *kinds = json_object();

	for (uint32_t i = 0; i < KVPD_PORTION_KINDS; i++) {
		json_t *k = json_object();

		kvpd_put_int(k, "portions_total", f->portion[i].count);
		kvpd_put_seconds(k, "longest_seconds", f->portion[i].longest_ns);
		kvpd_put_seconds(k, "recent_seconds", f->portion[i].recent_ns);
		json_object_set_new(kinds, name[i], k);
	}
	kvpd_put_int(o, "rounds_total", f->rounds);
	kvpd_put_seconds(o, "slice_seconds", f->slice_ns);
	json_object_set_new(o, "portions", kinds);
	return o;
}

/* NULL: it is off, here. */
static json_t *advisor_json(const struct kvpd_advisor_figures *a)
{
	json_t *o = a->on ? json_object() : json_null();

	if (!a->on)
		return o;
	if (a->made)
		kvpd_put_seconds(o, "age_seconds", a->age_ns);
	else
		json_object_set_new(o, "age_seconds", json_null());
	kvpd_put_seconds(o, "cycle_seconds", a->cycle_ns);
	kvpd_put_seconds(o, "cycle_cpu_seconds", a->cpu_ns);
	kvpd_put_seconds(o, "longest_seconds", a->longest_ns);
	kvpd_put_int(o, "rankings_total", a->rankings);
	kvpd_put_int(o, "nodes", a->nodes);
	kvpd_put_int(o, "edges", a->edges);
	kvpd_put_int(o, "system_nodes", a->labelled[KVP_LABEL_SYSTEM]);
	kvpd_put_int(o, "user_nodes", a->labelled[KVP_LABEL_USER]);
	kvpd_put_int(o, "assistant_nodes", a->labelled[KVP_LABEL_ASSISTANT]);
	kvpd_put_int(o, "tool_nodes", a->labelled[KVP_LABEL_TOOL]);
	kvpd_put_int(o, "generated_nodes", a->labelled[KVP_LABEL_GENERATION]);
	kvpd_put_int(o, "dropped_total", a->dropped);
	kvpd_put_int(o, "consulted_total", a->consulted);
	kvpd_put_int(o, "stale_total", a->stale);
	kvpd_put_int(o, "spared_total", a->spared);
	kvpd_put_int(o, "suggested_total", a->suggested);
	kvpd_put_int(o, "prefetched_total", a->fetched);
	kvpd_put_int(o, "prefetched_used_total", a->fetched_used);
	kvpd_put_int(o, "memory_bytes", a->bytes);
	return o;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Of all tenants: sums, and of times the longest. */
static struct kvpd_advisor_figures advisor_of_all(const struct kvpd_figures *f)
{
	struct kvpd_advisor_figures sum = { 0 };

	for (uint32_t i = 0; i < f->n_tenants; i++) {
		const struct kvpd_advisor_figures *a = &f->tenant[i].advisor;

		sum.on = sum.on || a->on;
		sum.made = sum.made || a->made;
		sum.age_ns = larger(sum.age_ns, a->age_ns);
		sum.cycle_ns = larger(sum.cycle_ns, a->cycle_ns);
		sum.cpu_ns = larger(sum.cpu_ns, a->cpu_ns);
		sum.longest_ns = larger(sum.longest_ns, a->longest_ns);
		sum.rankings += a->rankings;
		sum.nodes += a->nodes;
		sum.edges += a->edges;
		for (uint32_t k = 0; k < KVP_LABELS; k++)
			sum.labelled[k] += a->labelled[k];
		sum.dropped += a->dropped;
		sum.consulted += a->consulted;
		sum.stale += a->stale;
		sum.spared += a->spared;
		sum.suggested += a->suggested;
		sum.fetched += a->fetched;
		sum.fetched_used += a->fetched_used;
		sum.bytes += a->bytes;
	}
	return sum;
}

static json_t *remat_json(const struct kvpd_remat_figures *r)
{
	json_t *o = json_object();

	kvpd_put_int(o, "offers", r->offers);
	kvpd_put_int(o, "charged_bytes", r->charged);
	kvpd_put_int(o, "wants_total", r->wants);
	kvpd_put_int(o, "unmet_total", r->unmet);
	kvpd_put_int(o, "asked_total", r->demands);
	kvpd_put_int(o, "met_total", r->met);
	kvpd_put_int(o, "returned_total", r->returned);
	kvpd_put_int(o, "late_total", r->late);
	kvpd_put_int(o, "met_tokens_total", r->tokens);
	kvpd_put_seconds(o, "token_seconds", r->tokens ? r->ns / r->tokens : 0);
	return o;
}

static struct kvpd_remat_figures remat_of_all(const struct kvpd_figures *f)
{
	struct kvpd_remat_figures sum = { 0 };

	for (uint32_t i = 0; i < f->n_tenants; i++) {
		const struct kvpd_remat_figures *r = &f->tenant[i].remat;

		sum.offers += r->offers;
		sum.charged += r->charged;
		sum.wants += r->wants;
		sum.unmet += r->unmet;
		sum.demands += r->demands;
		sum.met += r->met;
		sum.returned += r->returned;
		sum.late += r->late;
		sum.tokens += r->tokens;
		sum.ns += r->ns;
	}
	return sum;
}

static void put_ratio(json_t *o, const char *name, double ratio)
{
	json_object_set_new(o, name, ratio < 0 ? json_null() : json_real(ratio));
}

/* What is counted in the same way of a space, a tenant, and all. */
static void put_quality(json_t *o, const struct kvpd_quality_figures *q)
{
	kvpd_put_int(o, "quality_samples", q->samples);
	put_ratio(o, "quality_ratio", q->mean);
	put_ratio(o, "quality_error_ratio", q->worst);
	kvpd_put_int(o, "quality_checked_total", q->checked);
	kvpd_put_int(o, "quality_reported_total", q->reported);
	kvpd_put_int(o, "quality_changes_total", q->changes);
}

/* Of a tenant, or of all. */
static void put_qualities(json_t *o, const struct kvpd_quality_figures *q)
{
	kvpd_put_int(o, "quality_spaces", q->spaces);
	kvpd_put_int(o, "quality_raised_spaces", q->raised);
	put_quality(o, q);
}

/* Blocks in DRAM by precision; of_tenant: also what coding them with fewer bits has freed. */
static void put_widths(json_t *o,
	const struct kvpd_width_figures *width /* [KVPD_FIGURES_WIDTHS] */, bool of_tenant)
{
	static const struct {
		const char *blocks, *bytes, *steps, *freed;
	} name[KVPD_FIGURES_WIDTHS] = {
		[1] = { "blocks_8_bits", "bytes_8_bits", "coded_8_bits_total",
			"freed_8_bits_bytes_total" },
		[2] = { "blocks_4_bits", "bytes_4_bits", "coded_4_bits_total",
			"freed_4_bits_bytes_total" },
		[3] = { "blocks_3_bits", "bytes_3_bits", "coded_3_bits_total",
			"freed_3_bits_bytes_total" },
		[4] = { "blocks_2_bits", "bytes_2_bits", "coded_2_bits_total",
			"freed_2_bits_bytes_total" },
	};
	struct kvpd_width_figures sum = { 0 };

	kvpd_put_int(o, "blocks_native", width[0].blocks);
	kvpd_put_int(o, "bytes_native", width[0].bytes);
	for (uint32_t w = 1; w < KVPD_FIGURES_WIDTHS; w++) {
		const struct kvpd_width_figures *f = &width[w];

		kvpd_put_int(o, name[w].blocks, f->blocks);
		kvpd_put_int(o, name[w].bytes, f->bytes);
		if (of_tenant) {
			kvpd_put_int(o, name[w].steps, f->steps);
			kvpd_put_int(o, name[w].freed, f->freed);
		}
		sum.blocks += f->blocks;
		sum.bytes += f->bytes;
		sum.steps += f->steps;
		sum.freed += f->freed;
	}
	kvpd_put_int(o, "coded_blocks", sum.blocks);
	kvpd_put_int(o, "coded_bytes", sum.bytes);
	if (of_tenant) {
		kvpd_put_int(o, "coded_total", sum.steps);
		kvpd_put_int(o, "coded_freed_bytes_total", sum.freed);
	}
}

/* What the steps of the ladder have done, from the first to the last: coded, evicted, forgotten. */
static void put_ladder(json_t *o, const struct kvpd_tenant_figures *t)
{
	put_widths(o, t->width, true);
	kvpd_put_int(o, "uncoded_total", t->uncoded);
	kvpd_put_seconds(o, "coding_cpu_seconds", t->coding_ns);
	kvpd_put_int(o, "evictions_total", t->evictions);
	kvpd_put_int(o, "evicted_bytes_total", t->evicted_bytes);
	kvpd_put_int(o, "reloads_total", t->reloads);
	kvpd_put_int(o, "forgotten_total", t->forgotten);
}

/* The same of all tenants. */
static struct kvpd_tenant_figures ladder_of_all(const struct kvpd_figures *f)
{
	struct kvpd_tenant_figures sum = { 0 };

	for (uint32_t i = 0; i < f->n_tenants; i++) {
		const struct kvpd_tenant_figures *t = &f->tenant[i];

		for (uint32_t w = 0; w < KVPD_FIGURES_WIDTHS; w++) {
			sum.width[w].blocks += t->width[w].blocks;
			sum.width[w].bytes += t->width[w].bytes;
			sum.width[w].steps += t->width[w].steps;
			sum.width[w].freed += t->width[w].freed;
		}
		sum.uncoded += t->uncoded;
		sum.coding_ns += t->coding_ns;
		sum.evictions += t->evictions;
		sum.evicted_bytes += t->evicted_bytes;
		sum.reloads += t->reloads;
		sum.forgotten += t->forgotten;
	}
	return sum;
}

static json_t *status_json(
	const struct kvpd_figures *f, const struct kvpd_rates *rates, uint32_t row)
{
	uint64_t charged = 0, blocks = 0, recipes = 0, attention = 0;
	struct kvpd_tenant_figures ladder = ladder_of_all(f);
	struct kvpd_advisor_figures advisor = advisor_of_all(f);
	struct kvpd_remat_figures remat = remat_of_all(f);
	struct kvpd_quality_figures quality = { .mean = -1, .worst = -1 };
	json_t *o = json_object();

	(void)row;
	for (uint32_t i = 0; i < f->n_tenants; i++) {
		charged += f->tenant[i].charged_bytes;
		blocks += f->tenant[i].blocks;
		recipes += f->tenant[i].recipes;
		kvpd_quality_add(&quality, &f->tenant[i].quality);
		attention += f->tenant[i].attention_reported;
	}
	kvpd_put_word(o, "epoch", f->epoch);
	kvpd_put_seconds(o, "uptime_seconds", f->uptime_ns);
	kvpd_put_int(o, "sessions", f->sessions);
	kvpd_put_int(o, "max_sessions", f->max_sessions);
	kvpd_put_int(o, "tenants", f->n_tenants);
	kvpd_put_int(o, "memory_bytes", f->memory_bytes);
	kvpd_put_int(o, "promised_bytes", f->promised_bytes);
	kvpd_put_int(o, "stock_bytes", f->stock_bytes);
	kvpd_put_int(o, "charged_bytes", charged);
	kvpd_put_int(o, "blocks", blocks);
	kvpd_put_int(o, "recipes", recipes);
	put_ladder(o, &ladder);
	kvpd_put_text(o, "pages", f->hugetlb ? "hugetlb 2 MiB" : "4 KiB, THP where allowed");
	kvpd_put_text(o, "policy", f->policy);
	put_qualities(o, &quality);
	kvpd_put_int(o, "attention_reported_total", attention);
	json_object_set_new(o, "ledger", portions_json(f));
	json_object_set_new(o, "advisor", advisor_json(&advisor));
	json_object_set_new(o, "remat", remat_json(&remat));
	json_object_set_new(o, "rates", kvpd_rates_of_all(rates, f));
	return o;
}

static void put_lookups(json_t *o, const struct kvpd_lookups *n)
{
	kvpd_put_int(o, "lookups_total", n->hits + n->partial + n->misses);
	kvpd_put_int(o, "hits_total", n->hits);
	kvpd_put_int(o, "partial_total", n->partial);
	kvpd_put_int(o, "misses_total", n->misses);
	kvpd_put_int(o, "asked_tokens_total", n->tokens_asked);
	kvpd_put_int(o, "matched_tokens_total", n->tokens_matched);
}

static const char *const tokens_coded[4] = { "tokens_coded_2_bits_total",
	"tokens_coded_3_bits_total", "tokens_coded_4_bits_total", "tokens_coded_8_bits_total" };

static json_t *tenant_json(
	const struct kvpd_figures *f, const struct kvpd_rates *rates, uint32_t row)
{
	const struct kvpd_tenant_figures *t = &f->tenant[row];
	json_t *o = json_object();

	kvpd_put_int(o, "id", t->id);
	kvpd_put_text(o, "name", t->name);
	kvpd_put_bool(o, "abandoned", t->abandoned);
	kvpd_put_int(o, "sessions", t->sessions);
	kvpd_put_int(o, "share_bytes", t->share_bytes);
	kvpd_put_int(o, "charged_bytes", t->charged_bytes);
	kvpd_put_int(o, "metadata_bytes", t->metadata_bytes);
	kvpd_put_int(o, "block_metadata_bytes", t->metadata_bytes_per_block);
	kvpd_put_seconds(o, "lease_scan_seconds", t->lease_scan_ns);
	kvpd_put_int(o, "arena_bytes", t->arena_bytes);
	kvpd_put_int(o, "payload_bytes", t->payload_bytes);
	json_object_set_new(o, "fragmentation_ratio", json_real(kvpd_fragmentation(t)));
	kvpd_put_int(o, "blocks", t->blocks);
	kvpd_put_int(o, "max_blocks", t->max_blocks);
	kvpd_put_int(o, "recipes", t->recipes);
	kvpd_put_int(o, "max_recipes", t->max_recipes);
	json_object_set_new(o, "quality_target_ratio", json_real(t->quality_target / 100.));
	kvpd_put_int(o, "min_materialized_tokens", t->min_materialized);
	kvpd_put_int(o, "open_claims", t->open_claims);
	kvpd_put_text(o, "policy", t->policy);
	put_lookups(o, &t->lookups);
	kvpd_put_int(o, "put_tokens_total", t->tokens_put);
	kvpd_put_int(o, "commits_total", t->commits);
	kvpd_put_int(o, "duplicates_total", t->duplicates);
	kvpd_put_int(o, "refused_total", t->refused);
	put_ladder(o, t);
	kvpd_put_int(o, "yielded_total", t->yielded);
	kvpd_put_int(o, "moves_total", t->moves);
	kvpd_put_int(o, "claims_total", t->claims);
	kvpd_put_int(o, "waits_total", t->waits);
	kvpd_put_int(o, "deleted_total", t->deleted);
	put_qualities(o, &t->quality);
	kvpd_put_int(o, "attention_reported_total", t->attention_reported);
	kvpd_put_int(o, "token_attention_reported_total", t->tokens_reported);
	for (uint32_t i = 0; i < 4; i++)
		kvpd_put_int(o, tokens_coded[i], t->tokens_coded[i]);
	json_object_set_new(o, "advisor", advisor_json(&t->advisor));
	json_object_set_new(o, "remat", remat_json(&t->remat));
	json_object_set_new(o, "rates", kvpd_rates_of_tenant(rates, t));
	return o;
}

static json_t *client_json(
	const struct kvpd_figures *f, const struct kvpd_rates *rates, uint32_t row)
{
	const struct kvpd_client_figures *c = &f->client[row];
	json_t *o = json_object();

	(void)rates;
	kvpd_put_int(o, "session", c->session);
	kvpd_put_text(o, "tenant", f->tenant[c->tenant].name);
	kvpd_put_text(o, "name", c->name);
	kvpd_put_int(o, "pid", (uint64_t)c->pid);
	kvpd_put_int(o, "uid", c->uid);
	kvpd_put_int(o, "gid", c->gid);
	kvpd_put_seconds(o, "attached_seconds", c->attached_ns);
	kvpd_put_int(o, "leases", c->leases);
	kvpd_put_int(o, "grants", c->grants);
	kvpd_put_int(o, "claims", c->claims);
	kvpd_put_int(o, "parked", c->parked);
	kvpd_put_int(o, "arena_bytes", c->arena_bytes);
	put_lookups(o, &c->lookups);
	kvpd_put_bool(o, "expelled", c->expelled);
	return o;
}

/* The rule by which a space's blocks are coded, and what it has come to. */
static void put_rule(json_t *o, const struct kvpd_space_figures *s)
{
	kvpd_put_text(o, "precision", s->precision);
	json_object_set_new(o, "budget_ratio", json_real(s->budget / 1e6));
	kvpd_put_text(o, "budget_by", s->by_attention ? "attention" : "recency");
	kvpd_put_int(o, "attention_reported_total", s->attention_reported);
	kvpd_put_int(o, "hot_tokens", s->hot_tokens);
	kvpd_put_int(o, "stale_tokens", s->stale_tokens);
	kvpd_put_int(o, "dram_bytes", s->dram_bytes);
	kvpd_put_int(o, "native_bytes", s->native_bytes);
}

/* Whole ones as such, as all are but means of tokens' own. */
static void put_bits(json_t *o, const char *name, double bits)
{
	if (bits == (double)(uint64_t)bits)
		kvpd_put_int(o, name, (uint64_t)bits);
	else
		json_object_set_new(o, name, json_real(bits));
}

static json_t *space_json(
	const struct kvpd_figures *f, const struct kvpd_rates *rates, uint32_t row)
{
	const struct kvpd_space_figures *s = &f->space[row];
	char digest[2 * sizeof(s->fingerprint) + 1];
	json_t *o = json_object();

	for (size_t i = 0; i < sizeof(s->fingerprint); i++)
		snprintf(digest + 2 * i, 3, "%02x", s->fingerprint[i]);
	kvpd_put_int(o, "space", s->space);
	kvpd_put_text(o, "tenant", f->tenant[s->tenant].name);
	kvpd_put_int(o, "tenant_id", f->tenant[s->tenant].id);
	kvpd_put_text(o, "model", s->model);
	kvpd_put_text(o, "adapter", s->adapter);
	kvpd_put_text(o, "fingerprint", digest);
	kvpd_put_int(o, "block_tokens", s->block_tokens);
	kvpd_put_int(o, "block_bytes", s->block_bytes);
	kvpd_put_int(o, "layers", s->layers);
	kvpd_put_int(o, "kv_heads", s->kv_heads);
	kvpd_put_int(o, "head_dim", s->head_dim);
	kvpd_put_int(o, "opens", s->opens);
	kvpd_put_int(o, "asked_tokens_total", s->tokens_asked);
	kvpd_put_int(o, "matched_tokens_total", s->tokens_matched);
	kvpd_put_int(o, "put_tokens_total", s->tokens_put);
	kvpd_put_int(o, "blocks", s->blocks);
	kvpd_put_int(o, "payload_bytes", s->payload_bytes);
	kvpd_put_text(o, "floor", s->floor);
	kvpd_put_text(o, "calibration", s->calibration);
	put_widths(o, s->width, false);
	json_object_set_new(o, "token_seconds", json_real(s->computing_seconds));
	kvpd_put_int(o, "evictions_total", s->evictions);
	put_rule(o, s);
	put_bits(o, "floor_bits", s->quality.floor_bits);
	put_bits(o, "coding_bits", s->quality.coding_bits);
	kvpd_put_text(o, "quality_start", s->quality_start);
	put_quality(o, &s->quality);
	json_object_set_new(o, "rates", kvpd_rates_of_space(rates, &f->tenant[s->tenant], s));
	return o;
}

static json_t *queues_json(const struct kvpd_device_row *d)
{
	static const char *const name[KVPD_FIGURES_CLASSES] = { "urgent", "spill", "warm", "behind",
		"ahead" };
	json_t *o = json_object();

	for (uint32_t i = 0; i < KVPD_FIGURES_CLASSES; i++) {
		json_t *q = json_object();

		kvpd_put_int(q, "queued", d->queue[i].queued);
		kvpd_put_seconds(q, "oldest_seconds", d->queue[i].oldest_ns);
		kvpd_put_int(q, "done_total", d->queue[i].done);
		kvpd_put_int(q, "failed_total", d->queue[i].failed);
		json_object_set_new(o, name[i], q);
	}
	return o;
}

static void put_part(json_t *o, const struct kvpd_part_figures *p)
{
	kvpd_put_int(o, "charged_bytes", p->charged_bytes);
	kvpd_put_int(o, "blocks", p->blocks);
	json_object_set_new(o, "fragmentation_ratio", json_real(kvpd_part_fragmentation(p)));
	kvpd_put_int(o, "put_total", p->put);
	kvpd_put_int(o, "behind_total", p->behind);
	kvpd_put_int(o, "warmed_total", p->warmed);
	kvpd_put_int(o, "dropped_total", p->dropped);
	kvpd_put_int(o, "reloads_total", p->reloads);
	kvpd_put_int(o, "prefetched_total", p->ahead);
	kvpd_put_int(o, "prefetched_used_total", p->ahead_used);
}

/* What each tenant has of the device; *ret_sum: all of them. */
static json_t *parts_json(
	const struct kvpd_figures *f, uint32_t device, struct kvpd_part_figures *ret_sum)
{
	json_t *list = json_array();

	*ret_sum = (struct kvpd_part_figures){ 0 };
	for (uint32_t i = 0; i < f->n_tenants; i++) {
		const struct kvpd_part_figures *p = &f->tenant[i].part[device];
		json_t *o = json_object();

		kvpd_put_text(o, "tenant", f->tenant[i].name);
		kvpd_put_int(o, "tenant_id", f->tenant[i].id);
		kvpd_put_int(o, "share_bytes", p->share_bytes);
		put_part(o, p);
		kvpd_put_int(o, "damaged_total", p->damaged);
		kvpd_put_int(o, "verified_total", p->verified);
		kvpd_put_int(o, "unverified_total", p->unverified);
		kvpd_put_int(o, "verifying", p->verifying);
		json_array_append_new(list, o);
		ret_sum->charged_bytes += p->charged_bytes;
		ret_sum->blocks += p->blocks;
		ret_sum->payload_bytes += p->payload_bytes;
		ret_sum->put += p->put;
		ret_sum->behind += p->behind;
		ret_sum->warmed += p->warmed;
		ret_sum->dropped += p->dropped;
		ret_sum->reloads += p->reloads;
		ret_sum->ahead += p->ahead;
		ret_sum->ahead_used += p->ahead_used;
	}
	return list;
}

static json_t *device_json(
	const struct kvpd_figures *f, const struct kvpd_rates *rates, uint32_t row)
{
	const struct kvpd_device_row *d = &f->device[row];
	json_t *o = json_object(), *parts;
	struct kvpd_part_figures sum;
	char uuid[2 * sizeof(d->uuid) + 1];

	(void)rates;
	for (size_t i = 0; i < sizeof(d->uuid); i++)
		snprintf(uuid + 2 * i, 3, "%02x", d->uuid[i]);
	parts = parts_json(f, row, &sum);
	kvpd_put_int(o, "device", row);
	kvpd_put_text(o, "name", d->name);
	kvpd_put_text(o, "driver", d->driver);
	kvpd_put_text(o, "state", d->state);
	if (d->pid)
		kvpd_put_int(o, "pid", (uint64_t)d->pid);
	kvpd_put_text(o, "error", d->error);
	if (*d->error)
		kvpd_put_seconds(o, "error_seconds", d->error_age_ns);
	kvpd_put_text(o, "uuid", uuid);
	if (d->numa_node >= 0)
		kvpd_put_int(o, "numa_node", (uint64_t)d->numa_node);
	if (d->bound_node >= 0)
		kvpd_put_int(o, "bound_node", (uint64_t)d->bound_node);
	kvpd_put_int(o, "memory_bytes", d->bytes);
	kvpd_put_int(o, "segment_bytes", d->segment_bytes);
	kvpd_put_int(o, "promised_bytes", d->promised_bytes);
	if (d->total_bytes) {
		kvpd_put_int(o, "total_bytes", d->total_bytes);
		kvpd_put_int(o, "free_bytes", d->free_bytes);
	}
	if (d->context_bytes != UINT64_MAX)
		kvpd_put_int(o, "context_bytes", d->context_bytes);
	put_part(o, &sum);
	kvpd_put_int(o, "owed_bytes", d->owed_bytes);
	kvpd_put_int(o, "segments", d->segments);
	kvpd_put_int(o, "restarts_total", d->restarts);
	kvpd_put_int(o, "losses_total", d->losses);
	kvpd_put_int(o, "damaged_total", d->damaged);
	kvpd_put_int(o, "pieces_total", d->pieces);
	kvpd_put_int(o, "to_device_bytes_total", d->copied_bytes[0]);
	kvpd_put_int(o, "from_device_bytes_total", d->copied_bytes[1]);
	json_object_set_new(
		o, "to_device_bytes_per_second", json_real((double)d->bytes_per_second[0]));
	json_object_set_new(
		o, "from_device_bytes_per_second", json_real((double)d->bytes_per_second[1]));
	json_object_set_new(o, "queues", queues_json(d));
	json_object_set_new(o, "tenants", parts);
	return o;
}

static uint32_t n_devices(const struct kvpd_figures *f)
{
	return f->n_devices;
}

static uint32_t n_tenants(const struct kvpd_figures *f)
{
	return f->n_tenants;
}

static uint32_t n_clients(const struct kvpd_figures *f)
{
	return f->n_clients;
}

static uint32_t n_spaces(const struct kvpd_figures *f)
{
	return f->n_spaces;
}

static const struct verb {
	const char *name;
	uint32_t what;
	uint32_t (*rows)(const struct kvpd_figures *f); /* NULL: no list */
	json_t *(*json)(const struct kvpd_figures *f, const struct kvpd_rates *rates, uint32_t row);
} verbs[] = {
	{ "status", KVPD_FIGURES_BRIEF, NULL, status_json },
	{ "tenants", 0, n_tenants, tenant_json },
	{ "clients", KVPD_FIGURES_CLIENTS, n_clients, client_json },
	{ "spaces", KVPD_FIGURES_SPACES, n_spaces, space_json },
	{ "devices", KVPD_FIGURES_BRIEF, n_devices, device_json },
};

static const struct verb *verb_of(const char *name)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(name, verbs[i].name))
			return &verbs[i];
	return NULL;
}

bool kvpd_figures_verb(const char *verb, uint32_t *ret_what)
{
	const struct verb *v = verb_of(verb);

	if (v)
		*ret_what = v->what;
	return v;
}

int64_t kvpd_figures_rows(const struct kvpd_figures *f, const char *verb)
{
	const struct verb *v = verb_of(verb);

	return v->rows ? (int64_t)v->rows(f) : -1;
}

json_t *kvpd_figures_json(const struct kvpd_figures *f, const struct kvpd_rates *rates,
	const char *verb, uint32_t row)
{
	return verb_of(verb)->json(f, rates, row);
}
