/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: to the journal where there is one, else to stderr; with rate limits. */
#include "daemon/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The priority is passed as a field of its own; file and line would be those of this file. */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

/* A reload changes the level while other threads log. */
static struct {
	_Atomic(int) max;
	_Atomic(bool) journal;
} state = { .max = KVPD_LOG_NOTICE };

static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t dev, ino;
	struct stat st;

	if (!stream || sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &dev, &ino) != 2)
		return false;
	return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void kvpd_log_level(enum kvpd_level max)
{
	state.max = (int)max;
}

void kvpd_log_init(enum kvpd_level max)
{
	kvpd_log_level(max);
	state.journal = stderr_is_journal();
}

void kvpd_log_detach(void)
{
	state.journal = access("/run/systemd/journal/socket", W_OK) == 0;
}

static void to_journal(enum kvpd_level level, const struct kvpd_who *who, const char *line)
{
	char text[KVPD_LOG_LINE + 16], field[5][48];
	struct iovec iov[6];
	int n = 0;

	snprintf(text, sizeof(text), "MESSAGE=%s", line);
	iov[n++] = (struct iovec){ text, strlen(text) };
	snprintf(field[0], sizeof(field[0]), "PRIORITY=%d", (int)level);
	iov[n++] = (struct iovec){ field[0], strlen(field[0]) };
	if (who) {
		const struct {
			const char *name;
			uint64_t value;
			bool present;
		} fields[] = {
			{ "KVPOOL_SESSION", who->session, who->session != 0 },
			{ "KVPOOL_TENANT", who->tenant, who->tenant != 0 },
			{ "KVPOOL_PID", (uint64_t)who->pid, who->pid > 0 },
			{ "KVPOOL_UID", who->uid, who->uid != (uid_t)-1 },
		};

		for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
			if (!fields[i].present)
				continue;
			snprintf(field[i + 1], sizeof(field[i + 1]), "%s=%" PRIu64, fields[i].name,
				fields[i].value);
			iov[n++] = (struct iovec){ field[i + 1], strlen(field[i + 1]) };
		}
	}
	(void)sd_journal_sendv(iov, n);
}

static void to_stderr(enum kvpd_level level, const char *line)
{
	static const char *const names[] = {
		[KVPD_LOG_ERR] = "error",
		[KVPD_LOG_WARNING] = "warning",
		[KVPD_LOG_NOTICE] = "notice",
		[KVPD_LOG_INFO] = "info",
		[KVPD_LOG_DEBUG] = "debug",
	};
	char out[KVPD_LOG_LINE + 64];
	struct timespec now;
	struct tm tm;
	int n;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	n = snprintf(out, sizeof(out), "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ kvpoold %s: %s\n",
		tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
		now.tv_nsec / 1000000, names[level], line);
	if (n >= (int)sizeof(out)) {
		n = sizeof(out) - 1;
		out[n - 1] = '\n';
	}
	/* One write, so that lines of several threads do not mix; its failure has no remedy. */
	if (write(STDERR_FILENO, out, (size_t)n) < 0)
		return;
}

static void emit(enum kvpd_level level, const struct kvpd_who *who, char *line)
{
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	if (state.journal)
		to_journal(level, who, line);
	else
		to_stderr(level, line);
}

void kvpd_log_who(enum kvpd_level level, const struct kvpd_who *who, const char *format, ...)
{
	int saved = errno;
	char line[KVPD_LOG_LINE];
	va_list ap;

	if ((int)level > state.max)
		return;
	va_start(ap, format);
	vsnprintf(line, sizeof(line), format, ap);
	va_end(ap);
	emit(level, who, line);
	errno = saved;
}

bool kvpd_ratelimit(struct kvpd_ratelimit *limit, uint32_t *ret_suppressed)
{
	struct timespec now;
	int64_t begin;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	begin = atomic_load(&limit->window_s);
	if (begin == INT64_MIN || now.tv_sec - begin >= limit->interval_s) {
		if (atomic_compare_exchange_strong(&limit->window_s, &begin, now.tv_sec))
			atomic_store(&limit->passed, 0);
	}
	if (atomic_fetch_add(&limit->passed, 1) < limit->burst) {
		*ret_suppressed = atomic_exchange(&limit->suppressed, 0);
		return true;
	}
	atomic_fetch_sub(&limit->passed, 1);
	atomic_fetch_add(&limit->suppressed, 1);
	return false;
}

void kvpd_log_limited(struct kvpd_ratelimit *limit, enum kvpd_level level,
	const struct kvpd_who *who, const char *format, ...)
{
	int saved = errno;
	char line[KVPD_LOG_LINE];
	uint32_t suppressed = 0;
	va_list ap;
	int n;

	if ((int)level > state.max || !kvpd_ratelimit(limit, &suppressed))
		return;
	va_start(ap, format);
	n = vsnprintf(line, sizeof(line), format, ap);
	va_end(ap);
	if (suppressed && n >= 0 && (size_t)n < sizeof(line))
		snprintf(line + n, sizeof(line) - (size_t)n, " (%u more held back before this)",
			suppressed);
	emit(level, who, line);
	errno = saved;
}
