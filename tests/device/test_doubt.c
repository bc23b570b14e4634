/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies on a GPU after its worker ended for an error of which nobody can tell what it did to memory: a sample of
 * each segment is compared with its checksums, what is as it was stays, and a segment in which something is not is
 * dropped. And what a check of the payloads there finds. On a simulated GPU, whose memory is files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cudadrv/cudadrv.h"
#include "tests/device/device.h"

#define GPU     "driver: cuda, bytes: 8MiB, segment: 2MiB"
#define SEGMENT (2u << 20)
#define PROMPTS 14u /* more than a segment has slots for */

static char folder[64];
static struct cudadrv *sim;

static int begin(void **state)
{
	struct cudadrv_config config;

	(void)state;
	snprintf(folder, sizeof(folder), "/dev/shm/kvpool-gpu-XXXXXX");
	assert_non_null(mkdtemp(folder));
	cudadrv_defaults(&config);
	assert_int_equal(cudadrv_new(folder, &config, &sim), 0);
	return setenv("KVP_SIM_GPU", folder, 1);
}

static int end(void **state)
{
	uint64_t reports = cudadrv_reports(sim, CUDADRV_REPORTS_N);
	char command[128];

	(void)state;
	sim = cudadrv_close(sim);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command) || reports ? -1 : 0;
}

/* Does something to each segment of the machine that has payloads. Returns how many it was. */
static uint32_t each_segment(void (*fn)(uint8_t *bytes, void *arg), void *arg, uint32_t most)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	uint32_t n = 0;

	assert_non_null(d);
	while (n < most && (e = readdir(d))) {
		struct stat st;
		uint8_t *bytes;
		int fd;

		if (strncmp(e->d_name, "seg.", 4))
			continue;
		fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0 && fstat(fd, &st) == 0);
		if (st.st_size >= SEGMENT) {
			bytes = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			assert_ptr_not_equal(bytes, MAP_FAILED);
			if (memchr(bytes, 1, SEGMENT)) {
				fn(bytes, arg);
				n++;
			}
			munmap(bytes, SEGMENT);
		}
		close(fd);
	}
	closedir(d);
	return n;
}

static void spoil(uint8_t *bytes, void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < SEGMENT; i += 64)
		bytes[i] ^= 1;
}

static void wait_up(struct dev_world *w, uint64_t restarts)
{
	for (int i = 0; i < 3000 && dev_figure(w, "restarts_total") < restarts; i++)
		e2e_sleep_us(10000);
	assert_true(dev_figure(w, "restarts_total") >= restarts);
	assert_true(dev_await(w, "devices", "up"));
}

/* The next copy ends the worker by an illegal address. `then`: what goes wrong from then on, until the device is up again. */
static void break_then(struct dev_world *w, struct dev_prompt *p, const struct cudadrv_fault *then)
{
	const struct cudadrv_fault fault = {
		.function = "op:copy",
		.program = "kvpool-device",
		.action = CUDADRV_STICKY,
		.times = 1,
		.value = 700,
	};
	const uint64_t restarts = dev_figure(w, "restarts_total");
	uint32_t number;
	int why;

	dev_put(w, p, 900);
	assert_int_equal(cudadrv_set(sim, &fault, &number), 0);
	for (int i = 0; i < 3000 && !cudadrv_hit(sim, number); i++)
		(void)dev_warm(w, p, &why);
	assert_int_equal(cudadrv_hit(sim, number), 1);
	assert_int_equal(cudadrv_clear(sim), 0);
	if (then)
		assert_int_equal(cudadrv_set(sim, then, &number), 0);
	wait_up(w, restarts + 1);
	if (then)
		assert_int_equal(cudadrv_hit(sim, number), then->times);
	assert_int_equal(cudadrv_clear(sim), 0);
}

static void break_it(struct dev_world *w, struct dev_prompt *p)
{
	break_then(w, p, NULL);
}

static void hang_at(const char *function, uint32_t *ret_number)
{
	const struct cudadrv_fault hang = {
		.function = function,
		.program = "kvpool-device",
		.action = CUDADRV_HANG,
		.times = 1,
	};

	assert_int_equal(cudadrv_set(sim, &hang, ret_number), 0);
}

static struct dev_prompt *fill(struct dev_world *w, uint32_t n)
{
	struct dev_prompt *p = calloc(n + 1, sizeof(*p));

	assert_non_null(p);
	for (uint32_t i = 0; i < n; i++) {
		dev_put(w, &p[i], i + 1);
		assert_true(dev_warm_all(w, &p[i]));
		dev_release(&p[i]);
	}
	assert_int_equal(dev_figure(w, "blocks"), n * DEV_BLOCKS);
	return p;
}

static uint64_t verified(struct dev_world *w)
{
	json_t *row = dev_row(w);
	const json_t *tenant = json_array_get(json_object_get(row, "tenants"), 0);
	const uint64_t n = (uint64_t)json_integer_value(json_object_get(tenant, "verified_total"));

	json_decref(row);
	return n;
}

static void what_is_as_it_was_stays(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p;

	(void)state;
	dev_begin(&w, GPU, "");
	p = fill(&w, PROMPTS);
	break_it(&w, &p[PROMPTS]);
	assert_int_equal(dev_figure(&w, "losses_total"), 0);
	assert_true(verified(&w) > 4);
	assert_true(dev_figure(&w, "blocks") >= PROMPTS * DEV_BLOCKS);
	assert_true(dev_warm_all(&w, &p[PROMPTS]));
	assert_int_equal(dev_figure(&w, "blocks"), (PROMPTS + 1) * DEV_BLOCKS);
	dev_release(&p[PROMPTS]);
	dev_end(&w);
	free(p);
}

/* A driver that is busy when a sample is read is asked again: that says nothing of what lies there. */
static void a_busy_driver_is_asked_again(void **state)
{
	const struct cudadrv_fault busy = {
		.function = "cuEventSynchronize",
		.program = "kvpool-device",
		.action = CUDADRV_RETURN,
		.times = 8,
		.value = 600,
	};
	struct dev_world w = { 0 };
	struct dev_prompt *p;

	(void)state;
	dev_begin(&w, GPU, "");
	p = fill(&w, 1);
	break_then(&w, &p[1], &busy);
	assert_int_equal(dev_figure(&w, "losses_total"), 0);
	assert_true(verified(&w) > 0);
	dev_release(&p[1]);
	dev_end(&w);
	free(p);
}

static void a_damaged_segment_goes(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p;
	uint64_t left = 0, restarts;

	(void)state;
	dev_begin(&w, GPU, "");
	p = fill(&w, PROMPTS);
	assert_int_equal(each_segment(spoil, NULL, 1), 1);
	break_it(&w, &p[PROMPTS]);
	assert_int_equal(dev_figure(&w, "losses_total"), 1);
	assert_true(dev_figure(&w, "damaged_total") > 0);
	for (int i = 0; i < 3000; i++) {
		left = dev_figure(&w, "blocks");
		if (left < PROMPTS * DEV_BLOCKS)
			break;
		e2e_sleep_us(10000);
	}
	/* The other one's are there still. */
	assert_true(left > 0 && left < PROMPTS * DEV_BLOCKS);
	for (uint32_t i = 0; i < PROMPTS; i++)
		assert_int_equal(e2e_fetch_all(&w.e, p[i].tokens, DEV_TOKENS), DEV_TOKENS);
	dev_release(&p[PROMPTS]);
	/* The worker, which has looked into it, let go of it: another one is made under its number. */
	restarts = dev_figure(&w, "restarts_total");
	for (uint32_t i = 0; i < PROMPTS; i++) {
		dev_put(&w, &p[i], i + 1);
		assert_true(dev_warm_all(&w, &p[i]));
		dev_release(&p[i]);
	}
	assert_int_equal(dev_figure(&w, "restarts_total"), restarts);
	dev_end(&w);
	free(p);
}

/* Whoever looks at it, or takes it over, comes to the same end: it is not asked for for ever. */
static void what_ends_workers_is_not_believed(void **state)
{
	static const struct cudadrv_fault ends[] = {
		{ .function = "op:copy", .value = 700 },
		{ .function = "cuMemImportFromShareableHandle", .value = 999 },
	};

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		struct cudadrv_fault fault = ends[i];
		struct dev_world w = { 0 };
		struct dev_prompt *p;
		uint32_t number, n;
		int why;

		dev_begin(&w, GPU, "");
		p = fill(&w, 1);
		dev_put(&w, &p[1], 900);
		fault.program = "kvpool-device";
		fault.action = CUDADRV_STICKY;
		assert_int_equal(cudadrv_set(sim, &fault, &n), 0);
		fault = ends[0];
		fault.program = "kvpool-device";
		fault.action = CUDADRV_STICKY;
		fault.times = 1;
		assert_int_equal(cudadrv_set(sim, &fault, &number), 0);
		for (int k = 0; k < 3000 && !cudadrv_hit(sim, number) && !cudadrv_hit(sim, n); k++)
			(void)dev_warm(&w, &p[1], &why);
		wait_up(&w, 3);
		assert_int_equal(dev_figure(&w, "losses_total"), 1);
		assert_int_equal(cudadrv_clear(sim), 0);
		assert_true(dev_warm_all(&w, &p[1]));
		assert_int_equal(e2e_fetch_all(&w.e, p->tokens, DEV_TOKENS), DEV_TOKENS);
		dev_release(&p[1]);
		dev_end(&w);
		free(p);
	}
}

/*
 * A copy that never ends, and a call that never comes back: the worker is ended, who asked is told, and what lay there is there
 * for the next one.
 */
static void what_never_ends_costs_a_worker(void **state)
{
	static const char *const functions[] = { "op:copy", "cuEventQuery", "cuEventSynchronize" };

	(void)state;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		struct dev_world w = { 0 };
		struct dev_prompt *p;
		uint64_t restarts;
		uint32_t number;
		int why = 0;

		dev_begin(&w, GPU ", timeout_ms: 1500", "");
		p = fill(&w, 1);
		dev_put(&w, &p[1], 900);
		restarts = dev_figure(&w, "restarts_total");
		hang_at(functions[i], &number);
		for (int k = 0; k < 100 && !cudadrv_hit(sim, number); k++)
			assert_true(dev_warm(&w, &p[1], &why) >= 0);
		assert_int_equal(cudadrv_hit(sim, number), 1);
		assert_true(why < 0);
		wait_up(&w, restarts + 1);
		assert_int_equal(cudadrv_clear(sim), 0);
		assert_true(dev_warm_all(&w, &p[1]));
		assert_int_equal(dev_figure(&w, "losses_total"), 0);
		assert_int_equal(dev_figure(&w, "blocks"), 2 * DEV_BLOCKS);
		assert_int_equal(e2e_fetch_all(&w.e, p->tokens, DEV_TOKENS), DEV_TOKENS);
		dev_release(&p[1]);
		dev_end(&w);
		free(p);
	}
}

/* Where pinning never comes to an end, bytes go through the worker's own memory, and the worker ends when it is told to. */
static void what_is_never_pinned_is_copied(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p;
	uint32_t number;

	(void)state;
	hang_at("cuMemHostRegister_v2", &number);
	dev_begin(&w, GPU, "");
	p = fill(&w, 1);
	/* What a client leaves comes to a vault. */
	e2e_detach(&w.e);
	dev_attach(&w, NULL);
	for (int i = 0; i < 3000 && !cudadrv_hit(sim, number); i++)
		e2e_sleep_us(10000);
	assert_int_equal(cudadrv_hit(sim, number), 1);
	json_decref(dev_ask(&w, "device-drain"));
	assert_true(dev_await(&w, "devices", "draining"));
	for (int i = 0; i < 3000 && dev_figure(&w, "blocks"); i++)
		e2e_sleep_us(10000);
	json_decref(dev_ask(&w, "device-attach"));
	assert_true(dev_await(&w, "devices", "up"));
	/* The same prompt, out of the vault. */
	dev_put(&w, p, 1);
	assert_true(dev_warm_all(&w, p));
	assert_int_equal(e2e_fetch_all(&w.e, p->tokens, DEV_TOKENS), DEV_TOKENS);
	dev_release(p);
	assert_int_equal(dev_figure(&w, "restarts_total"), 0);
	dev_end(&w);
	assert_int_equal(cudadrv_clear(sim), 0);
	free(p);
}

static json_t *check(struct dev_world *w, int status)
{
	char line[600], text[8000];
	json_error_t error;
	json_t *answer;
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "%s --socket %s --json check --payloads", getenv("KVCTL"),
		w->daemon.socket);
	f = popen(line, "r");
	assert_non_null(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	assert_int_equal(pclose(f) >> 8, status);
	answer = json_loads(text, 0, &error);
	assert_non_null(answer);
	return answer;
}

static int64_t told(json_t *answer, const char *name)
{
	return json_integer_value(json_object_get(answer, name));
}

static void flip_one(uint8_t *bytes, void *arg)
{
	const struct dev_prompt *p = arg;

	for (uint32_t at = 0; at < SEGMENT; at += 4096)
		if (e2e_derived(p->tokens, DEV_TOKENS, bytes + at))
			bytes[at + 500] ^= 0x40;
}

static void a_check_reads_what_lies_there(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p;
	json_t *a;

	(void)state;
	dev_begin(&w, GPU, "");
	p = fill(&w, 1);
	a = check(&w, 0);
	assert_int_equal(told(a, "device_verified"), DEV_BLOCKS);
	assert_int_equal(told(a, "device_unverified"), 0);
	json_decref(a);
	assert_int_equal(each_segment(flip_one, p, 1), 1);
	a = check(&w, 1);
	assert_int_equal(told(a, "device_damaged"), 1);
	assert_int_equal(told(a, "device_unverified"), 0);
	json_decref(a);
	for (int i = 0; i < 3000 && dev_figure(&w, "blocks") != DEV_BLOCKS - 1; i++)
		e2e_sleep_us(10000);
	assert_int_equal(dev_figure(&w, "blocks"), DEV_BLOCKS - 1);
	assert_int_equal(e2e_fetch_all(&w.e, p->tokens, DEV_TOKENS), DEV_TOKENS);
	dev_end(&w);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_as_it_was_stays, begin, end),
		cmocka_unit_test_setup_teardown(a_busy_driver_is_asked_again, begin, end),
		cmocka_unit_test_setup_teardown(a_damaged_segment_goes, begin, end),
		cmocka_unit_test_setup_teardown(what_ends_workers_is_not_believed, begin, end),
		cmocka_unit_test_setup_teardown(what_never_ends_costs_a_worker, begin, end),
		cmocka_unit_test_setup_teardown(what_is_never_pinned_is_copied, begin, end),
		cmocka_unit_test_setup_teardown(a_check_reads_what_lies_there, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
