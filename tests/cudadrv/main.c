/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine for scripts:
 *
 *	cudadrv run [NAME=VALUE...] -- COMMAND...	a machine of its own for one command, which
 *					finds the driver; its exit status, or 1 if --clean is the
 *					first argument and something was reported
 *	cudadrv new FOLDER [NAME=VALUE...]	a machine in an empty folder
 *	cudadrv reports FOLDER		name and count of what was reported
 *	cudadrv forget FOLDER		as if nothing had been
 *	cudadrv set FOLDER FUNCTION return|kill|sleep|sticky|hang [NAME=VALUE...]
 *					a fault: value, skip, times, program; prints its number
 *	cudadrv hit FOLDER NUMBER	how often it has struck
 *	cudadrv oom FOLDER BYTES	cudadrv stall FOLDER DEVICE in|out on|off
 *	cudadrv ecc FOLDER DEVICE	cudadrv gone FOLDER DEVICE on|off
 *	cudadrv clear FOLDER		no faults any more
 *	cudadrv free FOLDER DEVICE	bytes that nobody holds
 *	cudadrv calls FOLDER		calls of each entry point
 *	cudadrv uuid FOLDER DEVICE	GPU-...
 *
 * NAMEs of a machine are the members of struct cudadrv_config.
 */
#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudadrv/cudadrv.h"

#define OPTION(name)                                               \
	{                                                          \
#name, offsetof(struct cudadrv_config, name),      \
			sizeof(((struct cudadrv_config *)0)->name) \
	}
static const struct {
	const char *name;
	size_t at, bytes;
} options[] = { OPTION(devices), OPTION(driver_version), OPTION(vram_bytes), OPTION(context_bytes),
	OPTION(copy_rate), OPTION(latency_ns), OPTION(seed), OPTION(linger_ns), OPTION(no_vmm),
	OPTION(no_read_only), OPTION(no_mem_ops), OPTION(no_ipc), OPTION(stepping),
	OPTION(same_address) };

static int fail(const char *what, int r)
{
	fprintf(stderr, "cudadrv: %s: %s\n", what, strerror(-r));
	return 1;
}

/* 1: it was one. */
static int option(struct cudadrv_config *c, const char *arg)
{
	const char *value = strchr(arg, '=');

	for (size_t i = 0; value && i < sizeof(options) / sizeof(options[0]); i++) {
		if (strlen(options[i].name) != (size_t)(value - arg) ||
			strncmp(arg, options[i].name, (size_t)(value - arg)) != 0)
			continue;
		if (options[i].bytes == 8)
			*(uint64_t *)(void *)((char *)c + options[i].at) =
				strtoull(value + 1, NULL, 0);
		else
			*(uint32_t *)(void *)((char *)c + options[i].at) =
				(uint32_t)strtoul(value + 1, NULL, 0);
		return 1;
	}
	return 0;
}

static int parse(struct cudadrv_config *c, int argc, char **argv)
{
	int i = 0;

	cudadrv_defaults(c);
	for (; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (!option(c, argv[i])) {
			fprintf(stderr, "cudadrv: %s: no option of a machine\n", argv[i]);
			return -EINVAL;
		}
	return i;
}

static void print_reports(struct cudadrv *sim, FILE *to)
{
	for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++)
		if (cudadrv_reports(sim, i))
			fprintf(to, "%s %llu\n", cudadrv_report_name(i),
				(unsigned long long)cudadrv_reports(sim, i));
}

/* The driver lies beside this program. */
static void set_environment(const char *folder)
{
	char self[4096], path[8200];
	const char *before = getenv("LD_LIBRARY_PATH");
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return;
	self[n] = '\0';
	snprintf(path, sizeof(path), "%s%s%s", dirname(self), before ? ":" : "",
		before ? before : "");
	setenv("LD_LIBRARY_PATH", path, 1);
	snprintf(path, sizeof(path), "%s/libcuda.so.1", self);
	setenv("KVPOOL_LIBCUDA", path, 1);
	setenv("KVP_SIM_GPU", folder, 1);
}

static void remove_folder(const char *folder)
{
	char command[300];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	if (system(command) != 0)
		fprintf(stderr, "cudadrv: %s stays\n", folder);
}

static int run_in(const char *folder, char **command)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		set_environment(folder);
		execvp(command[0], command);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run(int argc, char **argv)
{
	char folder[] = "/dev/shm/cudadrv.XXXXXX";
	bool clean = argc > 0 && strcmp(argv[0], "--clean") == 0;
	struct cudadrv_config c;
	struct cudadrv *sim;
	int at, r;

	argc -= clean;
	argv += clean;
	at = parse(&c, argc, argv);
	if (at < 0 || at + 1 >= argc || !mkdtemp(folder))
		return 2;
	r = cudadrv_new(folder, &c, &sim);
	if (r < 0) {
		remove_folder(folder);
		return fail(folder, r);
	}
	r = run_in(folder, argv + at + 1);
	print_reports(sim, stderr);
	if (clean && r == 0 && cudadrv_reports(sim, CUDADRV_REPORTS_N))
		r = 1;
	cudadrv_close(sim);
	remove_folder(folder);
	return r;
}

static int set_fault(struct cudadrv *sim, int argc, char **argv)
{
	static const char *const actions[] = { "return", "kill", "sleep", "sticky", "hang" };
	struct cudadrv_fault f = { .function = argc > 0 ? argv[0] : "" };
	uint32_t number, action = 0;
	int r;

	while (argc > 1 && action < 5 && strcmp(actions[action], argv[1]) != 0)
		action++;
	if (argc < 2 || action == 5)
		return 2;
	f.action = action;
	for (int i = 2; i < argc; i++) {
		if (strncmp(argv[i], "value=", 6) == 0)
			f.value = strtoull(argv[i] + 6, NULL, 0);
		else if (strncmp(argv[i], "skip=", 5) == 0)
			f.skip = (uint32_t)strtoul(argv[i] + 5, NULL, 0);
		else if (strncmp(argv[i], "times=", 6) == 0)
			f.times = (uint32_t)strtoul(argv[i] + 6, NULL, 0);
		else if (strncmp(argv[i], "program=", 8) == 0)
			f.program = argv[i] + 8;
		else
			return 2;
	}
	r = cudadrv_set(sim, &f, &number);
	if (r < 0)
		return fail(f.function, r);
	printf("%u\n", number);
	return 0;
}

static void print_calls(struct cudadrv *sim)
{
	for (uint32_t i = 0; cudadrv_function(i); i++)
		printf("%s %lld\n", cudadrv_function(i),
			(long long)cudadrv_calls(sim, cudadrv_function(i)));
}

static int print_uuid(struct cudadrv *sim, uint32_t device)
{
	uint8_t u[16];
	int r = cudadrv_uuid(sim, device, u);

	if (r < 0)
		return fail("uuid", r);
	printf("GPU-");
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
	printf("\n");
	return 0;
}

static int print_free(struct cudadrv *sim, uint32_t device)
{
	uint64_t bytes;
	int r = cudadrv_free_bytes(sim, device, &bytes);

	if (r < 0)
		return fail("free", r);
	printf("%llu\n", (unsigned long long)bytes);
	return 0;
}

/* Of a machine that is there. */
static int act(struct cudadrv *sim, const char *verb, int argc, char **argv)
{
	uint32_t device = argc > 0 ? (uint32_t)strtoul(argv[0], NULL, 0) : 0;
	bool on = argc > 0 && strcmp(argv[argc - 1], "on") == 0;

	if (strcmp(verb, "reports") == 0)
		print_reports(sim, stdout);
	else if (strcmp(verb, "forget") == 0)
		return cudadrv_forget(sim) < 0;
	else if (strcmp(verb, "set") == 0)
		return set_fault(sim, argc, argv);
	else if (strcmp(verb, "hit") == 0 && argc == 1)
		printf("%u\n", cudadrv_hit(sim, device));
	else if (strcmp(verb, "clear") == 0)
		return cudadrv_clear(sim) < 0;
	else if (strcmp(verb, "calls") == 0)
		print_calls(sim);
	else if (strcmp(verb, "uuid") == 0)
		return print_uuid(sim, device);
	else if (strcmp(verb, "free") == 0)
		return print_free(sim, device);
	else if (strcmp(verb, "oom") == 0 && argc == 1)
		cudadrv_oom_below(sim, strtoull(argv[0], NULL, 0));
	else if (strcmp(verb, "ecc") == 0 && argc == 1)
		cudadrv_ecc(sim, device);
	else if (strcmp(verb, "gone") == 0 && argc == 2)
		cudadrv_gone(sim, device, on);
	else if (strcmp(verb, "stall") == 0 && argc == 3)
		cudadrv_stall(sim, device, strcmp(argv[1], "out") == 0, on);
	else
		return 2;
	return 0;
}

int main(int argc, char **argv)
{
	struct cudadrv_config c;
	struct cudadrv *sim;
	int r;

	if (argc > 2 && strcmp(argv[1], "run") == 0)
		return run(argc - 2, argv + 2);
	if (argc < 3) {
		fprintf(stderr, "usage: cudadrv run|new|reports|... FOLDER ...\n");
		return 2;
	}
	if (strcmp(argv[1], "new") == 0) {
		r = parse(&c, argc - 3, argv + 3);
		r = r < 0 ? r : cudadrv_new(argv[2], &c, &sim);
	} else {
		r = cudadrv_open(argv[2], &sim);
	}
	if (r < 0)
		return fail(argv[2], r);
	r = strcmp(argv[1], "new") == 0 ? 0 : act(sim, argv[1], argc - 3, argv + 3);
	cudadrv_close(sim);
	return r;
}
