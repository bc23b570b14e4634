/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvpoold. Order matters here: what needs privileges (limits, runtime directory, sockets, pools)
 * comes first, then privileges go, then threads start and clients are served.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/config_value.h"
#include "daemon/control/control.h"
#include "daemon/control/fit.h"
#include "daemon/dataplane.h"
#include "daemon/control/listen.h"
#include "daemon/log.h"
#include "daemon/privilege.h"
#include "shm/kvp_seg.h"

/* Exit statuses, also in kvpoold(8). */
#define EXIT_OK     0
#define EXIT_FAILED 1
#define EXIT_USAGE  2
#define EXIT_CONFIG 3

struct options {
	const char *config;
	const char *runtime_dir;
	bool check;
	bool foreground;
};

static void usage(FILE *to)
{
	fputs("kvpoold: shares one KV cache among the inference engines of this machine\n"
	      "\n"
	      "  --config FILE      configuration (" KVPD_DEFAULT_CONFIG "\n"
	      "                     if that exists, else built-in defaults)\n"
	      "  --check-config     check the configuration, say what is wrong, and end\n"
	      "  --foreground       stay in the foreground (as under systemd)\n"
	      "  --runtime-dir DIR  instead of runtime_dir of the configuration\n"
	      "  --version\n"
	      "  --help\n",
		to);
}

/* Exit status, or -1 to go on. */
static int parse_options(int argc, char **argv, struct options *ret)
{
	static const struct option longs[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "check-config", no_argument, NULL, 'k' },
		{ "foreground", no_argument, NULL, 'f' },
		{ "runtime-dir", required_argument, NULL, 'r' },
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct options o = { 0 };
	int c;

	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 'c':
			o.config = optarg;
			break;
		case 'k':
			o.check = true;
			break;
		case 'f':
			o.foreground = true;
			break;
		case 'r':
			o.runtime_dir = optarg;
			break;
		case 'v':
			printf("kvpoold %s (ABI %u)\n", KVPD_VERSION, KVP_ABI_VERSION);
			return EXIT_OK;
		case 'h':
			usage(stdout);
			return EXIT_OK;
		default:
			usage(stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvpoold: unexpected argument '%s'\n", argv[optind]);
		usage(stderr);
		return EXIT_USAGE;
	}
	*ret = o;
	return -1;
}

static int load(const struct options *o, struct kvpd_config **ret_config)
{
	const char *path = o->config;
	struct kvpd_config *config = NULL;
	struct kvpd_memory memory;
	char error[512] = "out of memory";
	char *whole;
	int r;

	if (!path && access(KVPD_DEFAULT_CONFIG, F_OK) == 0)
		path = KVPD_DEFAULT_CONFIG;
	/* In the background the working directory is another one when it is loaded again. */
	whole = path ? realpath(path, NULL) : NULL;
	kvpd_memory_read("", &memory);
	r = kvpd_config_load(
		whole ? whole : path, kvpd_memory_default(&memory), error, sizeof(error), &config);
	free(whole);
	if (r == 0 && o->runtime_dir)
		r = kvpd_config_set_runtime_dir(config, o->runtime_dir, error, sizeof(error));
	if (r == 0)
		r = kvpd_fit_machine(config, &memory, error, sizeof(error));
	if (r == 0)
		r = kvpd_fit_shares(config, error, sizeof(error));
	if (r < 0) {
		kvpd_err("%s", error);
		kvpd_config_free(config);
		return r;
	}
	*ret_config = config;
	return 0;
}

/*
 * What the memory is good for, in the unit that users think in: 128 KiB is a token of a model with
 * 32 layers and 8 key-value heads of 128 channels in 16 bits.
 */
static const char *room_text(const struct kvpd_config *c, char *buf, size_t bytes)
{
	const uint64_t token = 2u * 32 * 8 * 128 * 2;
	char memory[KVPD_HUMAN_BYTES], share[KVPD_HUMAN_BYTES];

	snprintf(buf, bytes,
		"memory %s%s; a tenant's share, unless it says otherwise, %s: at most %" PRIu64
		" tokens of an 8B model in 16 bits (kvbench estimate knows others)",
		kvpd_human(c->memory, memory),
		c->memory_given ? "" : " (a quarter of what there is)",
		kvpd_human(c->defaults.share, share), c->defaults.share / token);
	return buf;
}

/* ---- going to the background --------------------------------------------------------------- */

/*
 * The first process waits until the daemon says through the pipe how it went, so that its exit
 * status says whether kvpoold serves. Returns in the daemon, with the writing end.
 */
static int go_background(int *ret_tell)
{
	char status = EXIT_FAILED;
	int p[2];
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid > 0) {
		close(p[1]);
		/* Nothing to read: it died on the way. */
		if (read(p[0], &status, 1) != 1)
			status = EXIT_FAILED;
		_exit(status);
	}
	close(p[0]);
	if (setsid() < 0)
		return -errno;
	/* Not the leader of its session: no terminal can become its own. */
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid > 0)
		_exit(0);
	if (chdir("/") < 0)
		return -errno;
	*ret_tell = p[1];
	return 0;
}

/* stderr stays if it leads to a file or a pipe: that is where the messages are wanted. */
static void leave_terminal(int tell)
{
	static const char served = EXIT_OK;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		if (isatty(STDERR_FILENO)) {
			dup2(null, STDERR_FILENO);
			kvpd_log_detach();
		}
		close(null);
	}
	if (write(tell, &served, 1) != 1)
		kvpd_warning("the process that started kvpoold is gone");
	close(tell);
}

/* ---- running ------------------------------------------------------------------------------- */

static int serve(struct kvpd_control *control, struct kvpd_ledger *ledger,
	const struct kvpd_account *account, const struct kvpd_config *config, int tell)
{
	char text[256];
	int r;

	r = kvpd_drop_privileges(account);
	if (r < 0)
		return r;
	r = kvpd_ledger_start(ledger);
	if (r < 0) {
		kvpd_err("cannot start the ledger: %s", strerror(-r));
		return r;
	}
	r = kvpd_control_bind(control, ledger);
	if (r < 0)
		return r;
	kvpd_notice("kvpoold %s serves on %s/%s as uid %u", KVPD_VERSION, config->runtime_dir,
		config->socket, (unsigned)account->uid);
	kvpd_notice("%s", room_text(config, text, sizeof(text)));
	if (tell >= 0)
		leave_terminal(tell);
	return kvpd_control_run(control);
}

/* Takes the config. */
static int run(struct kvpd_config *config, int tell)
{
	struct kvpd_control *control = NULL;
	struct kvpd_ledger_params params = { .config = config };
	struct kvpd_ledger *ledger = NULL;
	struct kvpd_account account;
	kvp_autoclose int lock = -1;
	int r;

	umask(077);
	r = kvpd_account_find(config->user, &account);
	if (r == 0) {
		kvpd_raise_limits(config->realtime != KVPD_NEVER);
		r = kvpd_runtime_dir(config->runtime_dir, account.uid, account.gid, &lock);
	}
	if (r == 0 && getrandom(&params.epoch, sizeof(params.epoch), 0) != sizeof(params.epoch))
		r = -errno;
	if (r < 0) {
		kvpd_config_free(config);
		return r;
	}
	/* Not 0, and a positive number in JSON. */
	params.epoch = (params.epoch >> 1) | 1;
	r = kvpd_control_new(config, &account, params.epoch, &control);
	if (r < 0)
		return r;
	params.owner = account.uid;
	params.post = kvpd_control_post;
	params.ctx = control;
	r = kvpd_ledger_new(&params, &ledger);
	if (r == 0)
		r = serve(control, ledger, &account, config, tell);
	kvpd_control_stop(control);
	kvpd_ledger_free(ledger);
	kvpd_control_free(control);
	return r;
}

/* The first three descriptors must be there, else sockets get their numbers and our messages. */
static void keep_standard_descriptors(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

int main(int argc, char **argv)
{
	struct kvpd_config *config;
	struct options o;
	char text[256];
	int tell = -1, status, r = 0;

	keep_standard_descriptors();
	kvpd_log_init(KVPD_LOG_NOTICE);
	status = parse_options(argc, argv, &o);
	if (status >= 0)
		return status;
	if (load(&o, &config) < 0)
		return EXIT_CONFIG;
	if (o.check) {
		printf("%s: good\n%s\n", config->path ? config->path : "built-in defaults",
			room_text(config, text, sizeof(text)));
		kvpd_config_free(config);
		return EXIT_OK;
	}
	kvpd_log_init((enum kvpd_level)config->log_level);
	if (!o.foreground)
		r = go_background(&tell);
	if (r < 0) {
		kvpd_err("cannot go to the background: %s", strerror(-r));
		kvpd_config_free(config);
		return EXIT_FAILED;
	}
	return run(config, tell) < 0 ? EXIT_FAILED : EXIT_OK;
}
