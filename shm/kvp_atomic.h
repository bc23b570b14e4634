/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only way to touch a word of shared memory.
 *
 * Every shared word that can change after its segment was published is declared KVP_ATOMIC(type) in
 * kvp_abi.h and read and written with the functions below, so that a reader racing a writer is
 * defined behaviour and ThreadSanitizer can follow it (it does not understand fences, hence the
 * sequentially consistent exchange in kvp_lease.c instead of one).
 *
 * The names say the order; a comment at each use that needs more than relaxed names its partner.
 */
#ifndef KVP_ATOMIC_H
#define KVP_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

#define kvp_load_relaxed(p)     atomic_load_explicit((p), memory_order_relaxed)
#define kvp_load_acquire(p)     atomic_load_explicit((p), memory_order_acquire)
#define kvp_load_seq(p)         atomic_load_explicit((p), memory_order_seq_cst)
#define kvp_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define kvp_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define kvp_store_seq(p, v)     atomic_store_explicit((p), (v), memory_order_seq_cst)
#define kvp_xchg_seq(p, v)      atomic_exchange_explicit((p), (v), memory_order_seq_cst)
#define kvp_add_relaxed(p, v)   atomic_fetch_add_explicit((p), (v), memory_order_relaxed)
#define kvp_or_relaxed(p, v)    atomic_fetch_or_explicit((p), (v), memory_order_relaxed)
#define kvp_or_seq(p, v)        atomic_fetch_or_explicit((p), (v), memory_order_seq_cst)
#define kvp_cas_seq(p, old, new)                 \
	atomic_compare_exchange_strong_explicit( \
		(p), (old), (new), memory_order_seq_cst, memory_order_seq_cst)

/*
 * A counter with one writing thread: load and store rather than a locked add. Never use it where
 * two threads may write.
 */
#define kvp_bump(p, n) kvp_store_relaxed((p), kvp_load_relaxed(p) + (n))

/*
 * Fences. ThreadSanitizer knows none (gcc refuses them); a locked exchange of a word of one's own
 * orders at least as much.
 */
#if defined(__SANITIZE_THREAD__)
#define KVP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVP_TSAN 1
#endif
#endif

#ifdef KVP_TSAN
static inline void kvp_fence_seq(void)
{
	_Atomic(uint32_t) own = 0;

	(void)kvp_xchg_seq(&own, 1);
}
#define kvp_fence_acquire() kvp_fence_seq()
#else
#define kvp_fence_seq()     atomic_thread_fence(memory_order_seq_cst)
#define kvp_fence_acquire() atomic_thread_fence(memory_order_acquire)
#endif

#if defined(__x86_64__) || defined(__i386__)
#define kvp_cpu_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define kvp_cpu_relax() __asm__ __volatile__("yield" ::: "memory")
#else
#define kvp_cpu_relax() ((void)0)
#endif

#endif
