/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All CUDA kernels on a real GPU: correct, capturable, and how fast. Exit status: 0 all is well, 1
 * something differs, 77 there is no GPU (or no nvcc made the kernels).
 *
 *	gpu_check [--quick]			everything
 *	gpu_check --attention [--quick]		attention alone: checks, graphs, speed
 *	gpu_check --speed [--quick]		only how fast attention is
 *	gpu_check --decode SECONDS [--quick]	only how long one launch after the other takes
 *	gpu_check --copies SECONDS	only plain copies both ways, for what is measured beside them
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/bench.h"

#define EXIT_SKIP 77

static const struct {
	const char *name;
	int (*check)(struct device *d, struct rng *r);
	unsigned int rounds;
} checks[] = {
	{ "encode, decode: whole pages", check_pages, 400 },
	{ "encode and store, load: scattered tokens", check_slots, 200 },
	{ "decode of hostile payloads", check_hostile, 100 },
	{ "strided copies", check_copy, 100 },
	{ "runs", check_runs, 100 },
	{ "attention and merge", check_attend, 250 },
};

static int run_checks(struct gpu *g, uint64_t seed, int attention_alone)
{
	int bad = 0;

	for (size_t c = 0; c < sizeof(checks) / sizeof(checks[0]); c++) {
		unsigned int i;

		if (attention_alone && checks[c].check != check_attend)
			continue;

		unsigned int rounds = g->quick ? 2 : checks[c].rounds;

		for (i = 0; i < rounds; i++) {
			struct rng r = { seed + i * UINT64_C(0x1000003), i };

			g->device.error[0] = '\0';
			if (checks[c].check(&g->device, &r) < 0)
				break;
		}
		printf("%-44s %s", checks[c].name, i == rounds ? "ok" : "FAILED");
		printf("  %u cases\n", i == rounds ? i : i + 1);
		if (i < rounds) {
			printf("    round %u: %s\n", i, g->device.error);
			g->device.reset(&g->device);
			bad = 1;
		}
	}
	return bad;
}

static void print_device(struct gpu *g)
{
	int version = 0, major = 0, minor = 0, sms = 0;
	char name[128] = "?";
	time_t now = time(NULL);
	char date[32];
	struct tm tm;

	g->cu.cuDriverGetVersion(&version);
	g->cu.cuDeviceGetName(name, sizeof(name), g->cu.device);
	g->cu.cuDeviceGetAttribute(&major, CU_ATTR_CC_MAJOR, g->cu.device);
	g->cu.cuDeviceGetAttribute(&minor, CU_ATTR_CC_MINOR, g->cu.device);
	g->cu.cuDeviceGetAttribute(&sms, CU_ATTR_SM_COUNT, g->cu.device);
	strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &tm));
	printf("%s  %s  cc %d.%d  %d multiprocessors  driver %d.%d\n", date, name, major, minor,
		sms, version / 1000, version % 1000 / 10);
}

/* Spills and register counts tell whether machine code or jitted PTX is as good as it was. */
static void print_functions(struct gpu *g)
{
	for (uint32_t i = 0; i < kvp_cuda_kernel_count; i++) {
		int regs = 0, local = 0;

		g->cu.cuFuncGetAttribute(&regs, CU_FUNC_REGS, g->function[i]);
		g->cu.cuFuncGetAttribute(&local, CU_FUNC_LOCAL_BYTES, g->function[i]);
		printf("  %-32s %3d registers  %3d bytes of stack\n", kvp_cuda_kernels[i].name,
			regs, local);
	}
}

/* Only the question whether there is a GPU, for who is about to spend a minute on building: its
 * major compute capability, or why not. */
static int present(void)
{
	char why[200] = "";
	int major = 0;
	struct kvp_cu cu;

	if (kvp_cu_open(0, &cu, why) < 0) {
		printf("skipped, no GPU run: %s\n", why);
		return EXIT_SKIP;
	}
	cu.cuDeviceGetAttribute(&major, CU_ATTR_CC_MAJOR, cu.device);
	printf("%d\n", major);
	return 0;
}

/* The table, for resources.py: name, most threads, most shared memory, bytes of parameters. */
static int list(void)
{
	for (uint32_t i = 0; i < kvp_cuda_kernel_count; i++)
		printf("%s %u %u %u\n", kvp_cuda_kernels[i].name, kvp_cuda_kernels[i].threads_max,
			kvp_cuda_kernels[i].smem_max, kvp_cuda_kernels[i].param_bytes);
	return 0;
}

int main(int argc, char **argv)
{
	const char *env = getenv("KVP_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL);
	struct rng r = { seed, 0 };
	char why[200] = "";
	int rc, bad = 0, attention, speed;
	struct gpu g;

	if (argc > 1 && strcmp(argv[1], "--present") == 0)
		return present();
	if (argc > 1 && strcmp(argv[1], "--list") == 0)
		return list();
	rc = gpu_open(&g, why);
	if (rc == -ENODEV || rc == -ENOTSUP) {
		printf("skipped, no GPU run: %s\n", why);
		return EXIT_SKIP;
	}
	if (rc < 0) {
		printf("cannot use the GPU: %s\n", why);
		return 1;
	}
	attention = argc > 1 && strcmp(argv[1], "--attention") == 0;
	speed = argc > 1 && strcmp(argv[1], "--speed") == 0;
	g.quick = argc > 1 && strcmp(argv[argc - 1], "--quick") == 0;
	print_device(&g);
	if (argc > 2 && (!strcmp(argv[1], "--decode") || !strcmp(argv[1], "--copies"))) {
		const double seconds = strtod(argv[2], NULL);

		bad = (argv[1][2] == 'd' ? bench_decode(&g, &r, seconds)
					 : bench_copies(&g, seconds)) < 0;
		gpu_close(&g);
		return bad;
	}
	print_functions(&g);
	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	if (!speed) {
		bad = run_checks(&g, seed, attention);
		bad |= graph_replays(&g, &r) < 0;
		bad |= graph_shapes(&g, &r) < 0;
	}
	if (!speed && !attention)
		bad |= bench_codecs(&g, &r) < 0;
	bad |= bench_attention(&g, &r) < 0;
	gpu_close(&g);
	printf("%s\n", bad ? "SOMETHING FAILED" : "all is well");
	return bad ? 1 : 0;
}
