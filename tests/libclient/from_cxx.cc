/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call and every type of the installed headers as a C++ program says them. It is compiled by
 * the test headers-c++ and never run.
 */
#include <kvpool.h>
#include <kvpool_admin.h>
#include <kvpool_cuda.h>

namespace
{

int open_and_describe(kvp_client **client, kvp_space **space)
{
	char why[KVP_ERROR_TEXT];
	kvp_open_opts opts = {};
	kvp_layer layer = {};
	kvp_space_desc desc = {};
	kvp_space_props props = {};
	kvp_counters counters = {};
	uint64_t bytes = 0;

	opts.size = sizeof(opts);
	opts.error = why;
	opts.error_bytes = sizeof(why);
	desc.size = sizeof(desc);
	desc.layers = &layer;
	props.size = sizeof(props);
	counters.size = sizeof(counters);
	if (kvp_open(&opts, client) < 0)
		return kvp_last_error(*client, why, sizeof(why));
	if (kvp_space_open(*client, &desc, KVP_DEFAULT_TIMEOUT, space) < 0)
		return -1;
	return kvp_space_info(*space, &props) + kvp_stats(*client, &counters) +
	       kvp_space_block_bytes(*space, 0, &bytes) + kvp_report_quality(*space, 1) +
	       (kvp_version() != nullptr);
}

int64_t read(kvp_space *space, const uint32_t *tokens, size_t n, void *base)
{
	const float attention[1] = { 1 };
	kvp_match_opts opts = {};
	kvp_prefix *prefix = nullptr;
	kvp_prefix_info info = {};
	kvp_payload_info payload = {};
	kvp_payload_layer_info layer = {};
	kvp_digest digest = {};
	const void *addr = nullptr;
	kvp_view_plane plane = {};
	kvp_view view = {};
	uint64_t bytes = 0;

	opts.size = sizeof(opts);
	opts.flags = KVP_MATCH_CLAIM;
	info.size = sizeof(info);
	payload.size = sizeof(payload);
	view.size = sizeof(view);
	view.planes = &plane;
	kvp_ids ids = { tokens, n, KVP_IDS_U32 };
	if (kvp_match_ids(space, &ids, &opts, &prefix) < 0 ||
		kvp_put_ids(space, &ids, 0, &view, nullptr, nullptr) < 0)
		return -1;
	if (kvp_match(space, tokens, n, &opts, &prefix) < 0 || kvp_match_info(prefix, &info) < 0)
		return kvp_chunk_keys(space, tokens, n, &digest, 1);
	if (info.flags & KVP_MATCHED_PENDING && kvp_wait(prefix, 0) < 0)
		return kvp_release(prefix);
	if (kvp_payloads(prefix, 0, 1, &addr) < 0 || kvp_payload(prefix, 0, &payload) < 0 ||
		kvp_payload_planes(prefix, 0, 0, &layer) < 0 || kvp_touch(prefix) < 0)
		return -1;
	kvp_report_attention(prefix, attention, 1, 0);
	kvp_report_token_attention(prefix, attention, 64, 0);
	kvp_view_dense(space, KVP_VIEW_LCND, base, n, &plane, &bytes);
	return kvp_get(prefix, 0, static_cast<uint32_t>(n), &view, KVP_GET_VERIFY);
}

int64_t write(kvp_space *space, kvp_prefix *prefix, const uint32_t *tokens, kvp_view *view)
{
	kvp_put_opts opts = {};
	kvp_grant *grant = nullptr, *run[2] = {};
	kvp_ref parent = kvp_ref_root();
	uint32_t retry_ms = 0;
	int why = 0;

	opts.size = sizeof(opts);
	if (kvp_reserve(space, 0, &retry_ms, &grant) < 0 || !kvp_grant_addr(grant))
		return kvp_put(space, tokens, 64, 0, view, &opts, &retry_ms) +
		       kvp_put_outcome(space, tokens, 64, 0, 0, &why);
	kvp_match_ref(prefix, 0, &parent);
	if (kvp_reserve_run(space, 2, 0, &retry_ms, run) == 2 &&
		kvp_commit_run(run, 2, parent, tokens, 128, prefix, KVP_COMMIT_RELEASE, &parent) <
			0)
		return kvp_grant_release(run[0]) + kvp_grant_release(run[1]);
	kvp_fork(prefix, grant);
	kvp_commit(grant, parent, tokens, 64, prefix, KVP_COMMIT_RELEASE);
	return kvp_grant_wait(grant, 0) + kvp_grant_ref(grant, &parent) + kvp_grant_release(grant);
}

int64_t by_keys(kvp_space *space, const void *key, const void *block)
{
	kvp_prefix *prefix = nullptr;
	kvp_grant *grant = nullptr;
	uint64_t found = 0;

	if (kvp_match_keys(space, key, 1, KVP_MATCH_LEADING, &found, &prefix) == 1)
		return kvp_release(prefix);
	if (kvp_reserve_on(space, 0, 0, nullptr, &grant) == 0)
		kvp_grant_release(grant);
	if (kvp_reserve(space, 0, nullptr, &grant) == 0)
		return kvp_commit_keys(&grant, 1, key, 0) +
		       kvp_commit_keys_under(&grant, 1, key, &block, KVP_COMMIT_RELEASE);
	return kvp_put_keys(space, key, 1, &block, 0, nullptr);
}

int hand_over(kvp_space *space, const kvp_prefix *prefix)
{
	kvp_handover handover = {};
	kvp_prefix *taken = nullptr;

	if (kvp_match_export(prefix, &handover) < 0 ||
		kvp_match_import(space, &handover, &taken) < 0)
		return -1;
	return kvp_release(taken);
}

int salted(kvp_space *space, const uint8_t *salt)
{
	kvp_space *own = nullptr;

	if (kvp_space_salted(space, salt, &own) < 0)
		return -1;
	return kvp_space_close(own) == nullptr;
}

int of_a_group(kvp_space *a, kvp_space *b, const kvp_ids *tokens)
{
	kvp_space *const spaces[] = { a, b };
	kvp_prefix *prefixes[2] = {};

	if (kvp_match_group(spaces, 2, tokens, nullptr, prefixes) < 0)
		return -1;
	return kvp_release(prefixes[0]) + kvp_release(prefixes[1]);
}

int beside_other_things(kvp_client *client)
{
	uint64_t mark = 0;

	if (kvp_event_fd(client, KVP_EVENT_COMMITS | KVP_EVENT_CLAIMS) < 0 ||
		kvp_flush_mark(client, &mark) < 0)
		return -1;
	return kvp_flush_done(client, mark);
}

int outlive(kvp_client *client, kvp_prefix *prefix, kvp_grant *grant)
{
	kvp_timeline *timeline = nullptr;

	if (kvp_timeline_new(client, &timeline) < 0)
		return -1;
	kvp_release_after(prefix, timeline, 1);
	kvp_commit_after(grant, kvp_ref_root(), nullptr, 0, prefix, 0, timeline, 1);
	kvp_grant_release_after(grant, timeline, KVP_TIMELINE_MAX);
	kvp_timeline_advance(timeline, 1);
	int reached = kvp_timeline_reached(timeline, 1);
	timeline = kvp_timeline_free(timeline);
	return reached + (timeline == nullptr);
}

int on_device(kvp_client *client, kvp_space *space, kvp_prefix *prefix)
{
	kvp_device_props props = {};
	kvp_warm_opts opts = {};
	kvp_payload_info payload = {};
	kvp_ticket ticket = {};
	kvp_ids tokens = {};
	const void *addr = nullptr;
	int why = 0;

	props.size = sizeof(props);
	opts.size = sizeof(opts);
	opts.flags = KVP_WARM_PREFETCH;
	payload.size = sizeof(payload);
	if (kvp_device_info(client, 0, &props) < 0 || props.state != KVP_DEVICE_IS_UP)
		return -1;
	kvp_prefetch(space, &tokens, &opts);
	kvp_warm(prefix, &opts, &ticket);
	kvp_ticket_placed(client, ticket, KVP_DEFAULT_TIMEOUT);
	kvp_ticket_wait(client, ticket, KVP_DEFAULT_TIMEOUT, &why);
	kvp_device_payload(prefix, 0, 0, &payload);
	return kvp_device_payloads(prefix, 0, 0, 1, KVP_DEVICE_PENDING, &addr) + why;
}

int recompute(kvp_space *space, const kvp_ids *ids, uint32_t *tokens)
{
	kvp_want_opts want = {};
	kvp_serve_opts serve = {};
	kvp_demand demand = {};
	kvp_ticket ticket = {};
	uint32_t retry_ms = 0;

	want.size = sizeof(want);
	serve.size = sizeof(serve);
	demand.size = sizeof(demand);
	kvp_want(space, ids, &want, &ticket);
	kvp_serve_remat(space, &serve, KVP_DEFAULT_TIMEOUT, tokens, &retry_ms, &demand);
	return kvp_serve_end(space);
}

int64_t on_a_gpu(kvp_client *client, kvp_space *space, kvp_prefix *prefix, const kvp_view *view)
{
	kvp_cuda_opts opts = {};
	kvp_cuda_props props = {};
	kvp_cuda_range range = {};
	kvp_cuda_piece piece = {};
	kvp_cuda *cuda = nullptr;
	kvp_timeline *timeline = nullptr;
	kvp_ticket ticket = {};
	kvp_grant *grant = nullptr;
	CUstream_st *stream = nullptr;
	const void *host = nullptr;
	const uint32_t token = 0;
	uint64_t value = 0, addr = 0;
	int32_t slot = 0;
	int64_t n = 0;

	opts.size = sizeof(opts);
	props.size = sizeof(props);
	range.size = sizeof(range);
	if (kvp_cuda_open(client, &opts, &cuda) < 0)
		return -1;
	n += kvp_cuda_info(cuda, &props) + kvp_host_register(cuda, 0, KVP_DEFAULT_TIMEOUT);
	n += kvp_host_payloads(prefix, cuda, 0, 1, &host);
	n += kvp_cuda_get(prefix, cuda, 0, 1, view, stream);
	n += kvp_cuda_load(prefix, cuda, &piece, 1, stream);
	n += kvp_cuda_store(cuda, &grant, 1, &piece, 1, stream, timeline, &value);
	n += kvp_cuda_put(
		space, cuda, &token, 1, 0, view, nullptr, stream, timeline, &value, nullptr);
	n += kvp_cuda_mark(cuda, timeline, stream, &value);
	n += kvp_cuda_window(cuda, space, &range);
	n += kvp_cuda_slots(prefix, cuda, 0, 1, 0, &slot) +
	     kvp_cuda_addrs(prefix, cuda, 0, 1, 0, &addr);
	n += kvp_cuda_reserve(space, cuda, 0, nullptr, &grant);
	n += static_cast<int64_t>(kvp_grant_device_addr(grant));
	n += kvp_cuda_warm(prefix, cuda, nullptr, &ticket);
	n += kvp_cuda_stream_wait(cuda, stream, ticket);
	cuda = kvp_cuda_close(cuda);
	return n + (cuda == nullptr);
}

int administer(const char *request)
{
	kvp_admin *admin = nullptr;
	char *answer = nullptr;

	if (kvp_admin_open(nullptr, &admin) < 0)
		return -1;
	kvp_admin_request(admin, request, KVP_DEFAULT_TIMEOUT, 0, &answer);
	admin = kvp_admin_close(admin);
	return admin == nullptr;
}

} // namespace

int from_cxx(const uint32_t *tokens, kvp_view *view, void *base);

int from_cxx(const uint32_t *tokens, kvp_view *view, void *base)
{
	kvp_client *client = nullptr;
	kvp_space *space = nullptr;
	int64_t n = open_and_describe(&client, &space);

	n += read(space, tokens, 64, base) + write(space, nullptr, tokens, view);
	n += by_keys(space, tokens, base);
	n += hand_over(space, nullptr);
	n += outlive(client, nullptr, nullptr);
	n += on_device(client, space, nullptr);
	n += on_a_gpu(client, space, nullptr, view);
	n += kvp_flush(client, 0) + kvp_delete(space, tokens, 64, 0) + administer("{}");
	space = kvp_space_close(space);
	client = kvp_close(client);
	return static_cast<int>(n) + (client == nullptr) + (space == nullptr);
}
