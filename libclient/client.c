/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client is opened and closed, and says why it is not attached. What all calls need: option and
 * result structs of any size, timeouts, the shard of a thread, a forked child told apart.
 */
#include "libclient/cuda.h"
#include "libclient/events.h"
#include "libclient/match.h"
#include "libclient/thread.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

static_assert(KVP_CLIENT_LEASES == KVP_LEASES, "kvpool.h tells the limit");
static_assert(KVP_CLIENT_GRANTS == KVP_MAX_GRANTS, "kvpool.h tells the limit");

#define PAGE 4096u

#define STR_(x) #x
#define STR(x)  STR_(x)

const char *kvp_version(void)
{
	return STR(KVP_API_VERSION_MAJOR) "." STR(KVP_API_VERSION_MINOR) ".0";
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

uint64_t deadline_of(const struct kvp_client *client, uint32_t timeout_ms)
{
	if (timeout_ms == KVP_DEFAULT_TIMEOUT)
		timeout_ms = client->timeout_ms;
	return now_ns() + timeout_ms * NS_PER_MS;
}

uint64_t answer_by(uint64_t deadline)
{
	uint64_t least = now_ns() + KVP_ANSWER_MS * NS_PER_MS;

	return deadline < least ? least : deadline;
}

void client_kick(struct kvp_client *client)
{
	uint64_t one = 1;

	/* Fails only when the counter is full, and then the thread is awake anyway. */
	(void)!write(client->kick, &one, sizeof(one));
}

uint32_t thread_shard(void)
{
	static KVP_ATOMIC(uint32_t) threads;
	/* Initial-exec: a load, where the default model of a shared library is a call. */
	static _Thread_local uint32_t mine __attribute__((tls_model("initial-exec")));

	if (!mine)
		mine = kvp_add_relaxed(&threads, 1) % KVP_SHARDS + 1;
	return mine - 1;
}

int opts_take(void *dst, size_t bytes, const void *src)
{
	size_t theirs;

	memset(dst, 0, bytes);
	if (!src)
		return 0;
	memcpy(&theirs, src, sizeof(theirs));
	if (theirs < sizeof(theirs) || theirs > PAGE)
		return -EINVAL;
	memcpy(dst, src, theirs < bytes ? theirs : bytes);
	return 0;
}

int result_give(void *dst, const void *src, size_t bytes)
{
	size_t theirs;

	memcpy(&theirs, dst, sizeof(theirs));
	if (theirs < sizeof(theirs) || theirs > PAGE)
		return -EINVAL;
	memcpy((char *)dst + sizeof(theirs), (const char *)src + sizeof(theirs),
		(theirs < bytes ? theirs : bytes) - sizeof(theirs));
	return 0;
}

static int init_locks(struct kvp_client *c)
{
	pthread_condattr_t attr;

	if (pthread_mutex_init(&c->lock, NULL) || pthread_mutex_init(&c->ring_lock, NULL) ||
		pthread_mutex_init(&c->cuda_lock, NULL) || pthread_condattr_init(&attr))
		return -ENOMEM;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (pthread_cond_init(&c->changed, &attr))
		return -ENOMEM;
	pthread_condattr_destroy(&attr);
	return 0;
}

static int make_fork_page(struct kvp_client *c)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r;

	if (page == MAP_FAILED)
		return -errno;
	if (madvise(page, PAGE, MADV_WIPEONFORK) < 0) {
		r = -errno;
		munmap(page, PAGE);
		return r;
	}
	c->mine = page;
	*c->mine = 1;
	return 0;
}

const char *socket_path(const struct kvp_open_opts *o)
{
	const char *path = o->socket;

	if (!path)
		path = getenv("KVPOOL_SOCKET");
	return path && *path ? path : KVP_DEFAULT_SOCKET;
}

int socket_connect(const char *path, int *ret_sock)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	kvp_autoclose int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (sock < 0)
		return -errno;
	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	while (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		if (errno != EINTR)
			return -errno;
	*ret_sock = kvp_take_fd(&sock);
	return 0;
}

static int client_init(struct kvp_client *c, const struct kvp_open_opts *o)
{
	const char *path = socket_path(o);
	int r;

	if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
		snprintf(c->error_text, sizeof(c->error_text),
			"the socket's path has %zu bytes, and only %zu fit a socket's address",
			strlen(path), sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
		return -ENAMETOOLONG;
	}
	c->timeout_ms = o->default_timeout_ms ? o->default_timeout_ms : KVP_DEFAULT_TIMEOUT_MS;
	c->lazy = !!(o->flags & KVP_OPEN_LAZY);
	snprintf(c->name, sizeof(c->name), "%s", o->name ? o->name : program_invocation_short_name);
	c->socket = strdup(path);
	c->matches = prefix_chunk_new(c);
	c->packet = malloc(sizeof(*c->packet));
	if (!c->socket || !c->matches || !c->packet)
		return -ENOMEM;
	c->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->kick < 0)
		return -errno;
	r = make_fork_page(c);
	if (r < 0)
		return r;
	return init_locks(c);
}

static void matches_free(struct kvp_client *c)
{
	struct prefix_chunk *chunk = c->matches, *next;

	for (; chunk; chunk = next) {
		next = kvp_load_relaxed(&chunk->next);
		for (uint32_t i = 0; i < MATCHES_PER_CHUNK; i++) {
			free(chunk->match[i].hits);
			free(chunk->match[i].leases);
			free(chunk->match[i].chain);
			free(chunk->match[i].tokens);
		}
		free(chunk);
	}
}

/* The library's thread has ended, or is in another process. */
static void client_free(struct kvp_client *c)
{
	int mapped = c->mine && client_mine(c);

	retiring_free(c, mapped);
	for (uint32_t i = 0; i < N_ATTACHMENTS; i++)
		if (c->attachments[i])
			attachment_free(c->attachments[i], mapped);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		space_free(c->spaces[i]);
	if (c->matches)
		matches_free(c);
	if (c->kick >= 0)
		close(c->kick);
	if (c->event_fd >= 0)
		close(c->event_fd);
	if (c->mine)
		munmap((void *)c->mine, PAGE);
	free(c->packet);
	free(c->socket);
	free(c);
}

int thread_start(void *(*run)(void *arg), void *arg, pthread_t *ret_thread)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

void tell_why(const struct kvp_open_opts *o, const char *text, int error)
{
	if (!o->error || !o->error_bytes)
		return;
	if (error < 0 && !text[0])
		text = strerror(-error);
	snprintf(o->error, o->error_bytes, "%s", text);
}

/*
 * The caller makes the first attempt itself: on a busy machine a thread that was just born waits
 * longer for its first turns than one that has slept. Lazy too: an engine that asks a daemon that
 * is there shall not begin with a miss.
 */
static int client_start(struct kvp_client *c, const struct kvp_open_opts *o)
{
	int r = client_init(c, o);

	if (r < 0) {
		tell_why(o, c->error_text, r);
		return r;
	}
	r = client_attach(c);
	tell_why(o, c->error_text, r);
	return r == 0 || c->lazy ? thread_start(client_thread, c, &c->thread) : r;
}

int kvp_open(const struct kvp_open_opts *opts, struct kvp_client **ret_client)
{
	struct kvp_open_opts o;
	struct kvp_client *c;
	int r;

	if (!ret_client || opts_take(&o, sizeof(o), opts) < 0)
		return -EINVAL;
	if (o.flags & ~KVP_OPEN_LAZY) {
		tell_why(&o, "kvp_open_opts.flags has a bit that this library does not know", 0);
		return -EINVAL;
	}
	tell_why(&o, "", 0);
	c = aligned_alloc(64, (sizeof(*c) + 63) / 64 * 64);
	if (!c)
		return -ENOMEM;
	memset(c, 0, sizeof(*c));
	c->kick = c->event_fd = -1;
	timelines_init(c);
	r = client_start(c, &o);
	if (r < 0) {
		client_free(c);
		return r;
	}
	*ret_client = c;
	return 0;
}

struct kvp_client *kvp_close(struct kvp_client *c)
{
	if (!c)
		return NULL;
	if (client_mine(c)) {
		cudas_close(c);
		kvp_store_seq(&c->closing, 1);
		client_kick(c);
		events_stop(c);
		pthread_join(c->thread, NULL);
	}
	client_free(c);
	return NULL;
}

int kvp_last_error(struct kvp_client *client, char *buf, size_t bytes)
{
	if (!client || !buf || !bytes)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	pthread_mutex_lock(&client->lock);
	snprintf(buf, bytes, "%s", client->error_text);
	pthread_mutex_unlock(&client->lock);
	return 0;
}
