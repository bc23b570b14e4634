/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong on command, and the order of what CUDA leaves open. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/cudadrv/child.h"

#define SEG (4 * MIB)

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static uint32_t set(const char *function, enum cudadrv_action action, uint64_t value, uint32_t skip,
	uint32_t times)
{
	const struct cudadrv_fault f = {
		.function = function, .action = action, .value = value, .skip = skip, .times = times
	};
	uint32_t number = UINT32_MAX;

	if (cudadrv_set(machine, &f, &number) < 0)
		fprintf(stderr, "no fault was set for %s\n", function);
	return number;
}

static uint64_t device_alloc(uint64_t bytes)
{
	uint64_t at;

	must(cu.cuMemAlloc_v2(&at, bytes));
	return at;
}

static uint8_t *pinned_new(void)
{
	void *p;

	must(cu.cuMemHostAlloc(&p, MIB, CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	return p;
}

/* ---- calls ---- */

static void second_and_third_fail(void)
{
	uint64_t at;

	child_open();
	device_alloc(4096);
	gives(CU_ERR_NO_MEMORY, cu.cuMemAlloc_v2(&at, 4096));
	gives(CU_ERR_NO_MEMORY, cu.cuMemAlloc_v2(&at, 4096));
	device_alloc(4096);
}

static void the_nth_call_fails(void **state)
{
	uint32_t n = set("cuMemAlloc_v2", CUDADRV_RETURN, CU_ERR_NO_MEMORY, 1, 2);

	(void)state;
	assert_int_equal(child_run(second_and_third_fail), 0);
	assert_int_equal(cudadrv_hit(machine, n), 2);
}

static void set_access_is_busy(void)
{
	struct cu_access access = { { CU_LOC_DEVICE, 0 }, CU_PROT_RW };
	struct cu_alloc_prop prop = {
		.type = CU_MEM_PINNED, .handle_types = CU_HANDLE_FD, .location = access.location
	};
	uint64_t handle, at;
	double before;

	child_open();
	must(cu.cuMemCreate(&handle, SEG, &prop, 0));
	at = seg_reserve(SEG);
	must(cu.cuMemMap(at, SEG, 0, handle, 0));
	gives(CU_NOT_READY, cu.cuMemSetAccess(at, SEG, &access, 1));
	gives(CU_NOT_READY, cu.cuMemSetAccess(at, SEG, &access, 1));
	set("cuMemSetAccess", CUDADRV_SLEEP, 30000000, 0, 1);
	before = seconds();
	must(cu.cuMemSetAccess(at, SEG, &access, 1));
	holds(seconds() - before >= 0.03);
	set("cuMemImportFromShareableHandle", CUDADRV_RETURN, CU_ERR_NOT_PERMITTED, 0, 1);
	gives(CU_ERR_NOT_PERMITTED, cu.cuMemImportFromShareableHandle(&handle,
					    (void *)(intptr_t)seg_export(handle), CU_HANDLE_FD));
}

static void access_and_import_can_fail(void **state)
{
	(void)state;
	set("cuMemSetAccess", CUDADRV_RETURN, CU_NOT_READY, 0, 2);
	assert_int_equal(child_run(set_access_is_busy), 0);
}

static void retain(void)
{
	child_open();
}

static void a_process_ends_at_a_call(void **state)
{
	const struct cudadrv_fault others = { .function = "cuDevicePrimaryCtxRetain",
		.program = "another-program",
		.action = CUDADRV_KILL };
	int status;

	(void)state;
	assert_int_equal(cudadrv_set(machine, &others, NULL), 0);
	assert_int_equal(child_run(retain), 0);
	set("cuDevicePrimaryCtxRetain", CUDADRV_KILL, 0, 0, 1);
	status = child_run(retain);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(child_run(retain), 0);
}

static void unknown_functions_are_refused(void **state)
{
	const struct cudadrv_fault f = { .function = "cuNothing", .action = CUDADRV_KILL };

	(void)state;
	assert_true(cudadrv_set(machine, &f, NULL) < 0);
	assert_true(cudadrv_calls(machine, "cuNothing") < 0);
}

static void alloc_short(void)
{
	uint64_t at;

	child_open();
	gives(CU_ERR_NO_MEMORY, cu.cuMemAlloc_v2(&at, MIB));
	cudadrv_oom_below(machine, 0);
	device_alloc(MIB);
}

static void memory_ends_where_it_is_set(void **state)
{
	(void)state;
	/* the context is made below the limit, as a fault that comes while processes run */
	cudadrv_oom_below(machine, 512 * MIB);
	assert_int_equal(child_run(alloc_short), 0);
}

/* ---- operations ---- */

static void hang_until_cleared(void)
{
	struct CUstream_st *s;
	uint64_t at;

	child_open();
	at = device_alloc(MIB);
	s = stream_new();
	must(cu.cuMemcpyHtoDAsync_v2(at, pinned_new(), MIB, s));
	for (int i = 0; i < 50; i++) {
		gives(CU_NOT_READY, cu.cuStreamQuery(s));
		nap_ms(1);
	}
	must(cudadrv_clear(machine));
	must(cu.cuStreamSynchronize(s));
}

static void an_operation_hangs(void **state)
{
	(void)state;
	set("op:copy", CUDADRV_HANG, 0, 0, 1);
	assert_int_equal(child_run(hang_until_cleared), 0);
}

static void one_way_stalls(void)
{
	struct CUstream_st *in, *out;
	uint64_t at;

	child_open();
	at = device_alloc(2 * MIB);
	in = stream_new();
	out = stream_new();
	must(cu.cuMemcpyHtoDAsync_v2(at, pinned_new(), MIB, in));
	must(cu.cuMemcpyDtoHAsync_v2(pinned_new(), at + MIB, MIB, out));
	must(cu.cuStreamSynchronize(out));
	gives(CU_NOT_READY, cu.cuStreamQuery(in));
	cudadrv_stall(machine, 0, 0, 0);
	must(cu.cuStreamSynchronize(in));
}

static void an_engine_stalls(void **state)
{
	(void)state;
	cudadrv_stall(machine, 0, 0, 1);
	assert_int_equal(child_run(one_way_stalls), 0);
}

static void copy_breaks(void)
{
	struct CUstream_st *s;
	uint64_t at, more;

	child_open();
	at = device_alloc(MIB);
	s = stream_new();
	must(cu.cuMemcpyHtoDAsync_v2(at, pinned_new(), MIB, s));
	gives(719, cu.cuStreamSynchronize(s));
	gives(719, cu.cuMemAlloc_v2(&more, 4096));
	gives(719, cu.cuCtxSynchronize());
	holds(kvp_cu_lost(719));
}

static void an_asynchronous_error_is_sticky(void **state)
{
	(void)state;
	set("op:copy", CUDADRV_RETURN, 719, 0, 1);
	assert_int_equal(child_run(copy_breaks), 0);
	assert_int_equal(child_run(retain), 0); /* of that process alone */
}

static void wait_for_an_error(void)
{
	child_open();
	child_tell(child_link, 1, -1);
	child_hear(child_link, NULL);
	child_tell(child_link, (uint64_t)cu.cuCtxSynchronize(), -1);
}

static uint64_t error_after(void (*happens)(struct cudadrv *sim))
{
	int link;
	pid_t pid = child_start_linked(wait_for_an_error, &link);
	uint64_t error;

	child_hear(link, NULL);
	happens(machine);
	child_tell(link, 1, -1);
	error = child_hear(link, NULL);
	assert_int_equal(child_end(pid), 0);
	close(link);
	return error;
}

static void ecc(struct cudadrv *sim)
{
	cudadrv_ecc(sim, 0);
}

static void gone(struct cudadrv *sim)
{
	cudadrv_gone(sim, 0, 1);
}

static void no_device(void)
{
	child_load();
	gives(CU_ERR_NO_DEVICE, cu.cuInit(0));
}

static void a_device_has_an_error_of_its_memory(void **state)
{
	(void)state;
	assert_int_equal(error_after(ecc), CU_ERR_ECC);
	assert_int_equal(child_run(retain), 0);
}

static void a_device_leaves_the_bus(void **state)
{
	(void)state;
	assert_int_equal(error_after(gone), 999);
	assert_int_equal(child_run(no_device), 0);
	cudadrv_gone(machine, 0, 0);
	assert_int_equal(child_run(retain), 0);
}

/* A stream that waits for nothing that will come is woken by the error. */
static void wait_for_nothing(void)
{
	struct CUstream_st *s;
	uint64_t at;

	child_open();
	at = device_alloc(8);
	must(cu.cuMemsetD8_v2(at, 0, 8));
	must(cu.cuCtxSynchronize());
	s = stream_new();
	must(cu.cuStreamWaitValue64_v2(s, at, 1, CU_WAIT_GEQ));
	child_tell(child_link, 1, -1);
	gives(CU_ERR_ECC, cu.cuStreamSynchronize(s));
}

static void errors_wake_who_waits(void **state)
{
	int link;
	pid_t pid = child_start_linked(wait_for_nothing, &link);

	(void)state;
	child_hear(link, NULL);
	nap_ms(20);
	cudadrv_ecc(machine, 0);
	assert_int_equal(child_end(pid), 0);
	close(link);
}

static void unseen(void)
{
	setenv("CUDA_VISIBLE_DEVICES", "GPU-00000000", 1);
	no_device();
}

static void without_a_machine(void)
{
	unsetenv("KVP_SIM_GPU");
	no_device();
}

static void nobody_finds_it_by_accident(void **state)
{
	(void)state;
	assert_int_equal(child_run(unseen), 0);
	assert_int_equal(child_run(without_a_machine), 0);
	assert_int_equal(cudadrv_reports(machine, CUDADRV_REPORTS_N), 0);
}

/* ---- machines of their own ---- */

/* Runs in a machine of `config`; its reports must be none. */
static void in_machine(const struct cudadrv_config *config, void (*work)(void))
{
	char folder[sizeof(machine_folder)];
	struct cudadrv *before = machine;
	uint64_t reports;
	int status;

	memcpy(folder, machine_folder, sizeof(folder));
	assert_int_equal(machine_setup(config), 0);
	status = child_run(work);
	reports = cudadrv_reports(machine, CUDADRV_REPORTS_N);
	machine_teardown();
	machine = before;
	memcpy(machine_folder, folder, sizeof(folder));
	setenv("KVP_SIM_GPU", machine_folder, 1);
	assert_int_equal(status, 0);
	assert_int_equal(reports, 0);
}

#define RATE (UINT64_C(50) << 20)

static void two_copies(void)
{
	struct CUstream_st *a, *b;
	double before;
	uint64_t at;

	child_open();
	at = device_alloc(2 * MIB);
	a = stream_new();
	b = stream_new();
	before = seconds();
	must(cu.cuMemcpyHtoDAsync_v2(at, pinned_new(), MIB, a));
	must(cu.cuMemcpyHtoDAsync_v2(at + MIB, pinned_new(), MIB, b));
	must(cu.cuCtxSynchronize());
	holds(seconds() - before >= 2.0 * (double)MIB / (double)RATE);
}

static void copies_of_a_way_share_its_rate(void **state)
{
	const struct cudadrv_config c = { .copy_rate = RATE };

	(void)state;
	in_machine(&c, two_copies);
}

static char *order; /* shared with the children */

/* Eight stores each into two words, one step at a time: which word moved? */
static void step_two_streams(void)
{
	struct CUstream_st *s[2];
	uint64_t at[2], seen[2] = { 0, 0 };
	_Atomic uint64_t *p;

	child_open();
	p = (_Atomic uint64_t *)(void *)pinned_new();
	p[0] = p[1] = 0;
	for (int k = 0; k < 2; k++) {
		must(cu.cuMemHostGetDevicePointer_v2(&at[k], (void *)(p + k), 0));
		s[k] = stream_new();
		for (uint64_t i = 1; i <= 8; i++)
			must(launch(s[k], "poke", at[k], i, 0, 0, 0));
	}
	holds(p[0] == 0 && p[1] == 0);
	for (int i = 0; i < 16; i++) {
		holds(cudadrv_step(machine, 1) == 1);
		for (int k = 0; k < 2; k++)
			if (p[k] != seen[k]) {
				holds(p[k] == seen[k] + 1);
				seen[k] = p[k];
				order[i] = (char)('a' + k);
			}
	}
	must(cu.cuCtxSynchronize());
}

static void a_seed_orders_what_is_open(void **state)
{
	struct cudadrv_config c = { .stepping = 1 };
	char first[17] = "", again[17] = "";
	uint32_t differ = 0;

	(void)state;
	order = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(order, MAP_FAILED);
	for (c.seed = 1; c.seed <= 4; c.seed++) {
		in_machine(&c, step_two_streams);
		memcpy(first, order, 16);
		in_machine(&c, step_two_streams);
		assert_memory_equal(first, order, 16);
		differ += c.seed > 1 && memcmp(first, again, 16) != 0;
		memcpy(again, first, 16);
	}
	assert_true(differ > 0);
	munmap(order, 4096);
}

static void no_batches(void)
{
	uint64_t at, host;
	size_t one = 4096, first = 0;
	struct cu_copy_attr attr = { .order = CU_ORDER_STREAM };
	int value;

	child_open();
	at = device_alloc(4096);
	host = (uintptr_t)pinned_new();
	gives(CU_ERR_UNSUPPORTED,
		cu.cuMemcpyBatchAsync_v2(&at, &host, &one, 1, &attr, &first, 1, stream_new()));
	gives(CU_ERR_UNSUPPORTED, cu.cuStreamWriteValue64_v2(stream_new(), at, 1, CU_WRITE_PLAIN));
	must(cu.cuDeviceGetAttribute(&value, CU_ATTR_VMM, cu.device));
	holds(value == 0);
	must(cu.cuDeviceGetAttribute(&value, CU_ATTR_MEM_OPS_64, cu.device));
	holds(value == 0);
}

static void machines_can_have_less(void **state)
{
	const struct cudadrv_config c = { .driver_version = 12040, .no_vmm = 1, .no_mem_ops = 1 };

	(void)state;
	in_machine(&c, no_batches);
}

static int before_each(void **state)
{
	(void)state;
	return cudadrv_clear(machine) < 0 || cudadrv_forget(machine) < 0;
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup(test, before_each)
	const struct CMUnitTest tests[] = {
		EACH(the_nth_call_fails),
		EACH(access_and_import_can_fail),
		EACH(a_process_ends_at_a_call),
		EACH(unknown_functions_are_refused),
		EACH(memory_ends_where_it_is_set),
		EACH(an_operation_hangs),
		EACH(an_engine_stalls),
		EACH(an_asynchronous_error_is_sticky),
		EACH(a_device_has_an_error_of_its_memory),
		EACH(a_device_leaves_the_bus),
		EACH(errors_wake_who_waits),
		EACH(nobody_finds_it_by_accident),
		EACH(copies_of_a_way_share_its_rate),
		EACH(a_seed_orders_what_is_open),
		EACH(machines_can_have_less),
	};
	const struct cudadrv_config c = { .vram_bytes = 512 * MIB, .context_bytes = 32 * MIB };
	int failed;

	if (machine_setup(&c) < 0)
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	machine_teardown();
	return failed;
}
