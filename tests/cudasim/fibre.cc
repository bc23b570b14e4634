// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "tests/cudasim/fibre.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef WITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* Sanitizers triple frames; the kernels keep a few hundred bytes of locals. */
#define STACK_BYTES (256u << 10)

struct fibre {
	void *stack;
	void (*entry)(void *arg);
	void *arg;
#if defined(__x86_64__)
	void *sp;
#else
	ucontext_t ctx;
#endif
	void *fake_stack;
	void *tsan;
};

/* The scheduler's side of the switch. */
static struct {
#if defined(__x86_64__)
	void *sp;
#else
	ucontext_t ctx;
#endif
	void *fake_stack;
	const void *stack;
	size_t stack_bytes;
	void *tsan;
} home;

static struct fibre *starting;

#if defined(__x86_64__)
/* Saves what the ABI says survives a call, swaps stacks. glibc's swapcontext does the same plus a
 * system call for the signal mask, which is 20 times the price and of no use here. */
extern "C" void cudasim_swap(void **save, void *load);
__asm__(".text\n"
	".type cudasim_swap,@function\n"
	"cudasim_swap:\n"
	"	push %rbp\n"
	"	push %rbx\n"
	"	push %r12\n"
	"	push %r13\n"
	"	push %r14\n"
	"	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov %rsi, %rsp\n"
	"	pop %r15\n"
	"	pop %r14\n"
	"	pop %r13\n"
	"	pop %r12\n"
	"	pop %rbx\n"
	"	pop %rbp\n"
	"	ret\n"
	".size cudasim_swap,.-cudasim_swap\n");
#endif

static void arrived_in_fibre(struct fibre *f)
{
#ifdef WITH_ASAN
	__sanitizer_finish_switch_fiber(f->fake_stack, &home.stack, &home.stack_bytes);
#endif
	(void)f;
}

static void first_steps(void)
{
	struct fibre *f = starting;

	arrived_in_fibre(f);
	f->entry(f->arg);
	abort();
}

extern "C" struct fibre *fibre_new(void)
{
	struct fibre *f = static_cast<struct fibre *>(calloc(1, sizeof(*f)));

	if (f == NULL)
		return NULL;
	f->stack =
		mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (f->stack == MAP_FAILED) {
		free(f);
		return NULL;
	}
#ifdef WITH_TSAN
	f->tsan = __tsan_create_fiber(0);
#endif
	return f;
}

extern "C" void fibre_free(struct fibre *f)
{
	if (f == NULL)
		return;
#ifdef WITH_TSAN
	__tsan_destroy_fiber(f->tsan);
#endif
	munmap(f->stack, STACK_BYTES);
	free(f);
}

extern "C" void fibre_start(struct fibre *f, void (*entry)(void *arg), void *arg)
{
	f->entry = entry;
	f->arg = arg;
	f->fake_stack = NULL;
#ifdef WITH_ASAN
	/* A fibre that was given up in the middle left its frames' red zones behind. */
	__asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
	/* At entry the ABI wants rsp to be 8 below a multiple of 16, as after a call. */
	uintptr_t *sp = reinterpret_cast<uintptr_t *>(static_cast<char *>(f->stack) + STACK_BYTES);

	*--sp = 0;
	*--sp = reinterpret_cast<uintptr_t>(first_steps);
	for (int i = 0; i < 6; i++)
		*--sp = 0;
	f->sp = sp;
#else
	getcontext(&f->ctx);
	f->ctx.uc_stack.ss_sp = f->stack;
	f->ctx.uc_stack.ss_size = STACK_BYTES;
	f->ctx.uc_link = NULL;
	makecontext(&f->ctx, first_steps, 0);
#endif
}

extern "C" void fibre_enter(struct fibre *f)
{
	starting = f;
#ifdef WITH_TSAN
	home.tsan = __tsan_get_current_fiber();
	__tsan_switch_to_fiber(f->tsan, 0);
#endif
#ifdef WITH_ASAN
	__sanitizer_start_switch_fiber(&home.fake_stack, f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
	cudasim_swap(&home.sp, f->sp);
#else
	swapcontext(&home.ctx, &f->ctx);
#endif
#ifdef WITH_ASAN
	__sanitizer_finish_switch_fiber(home.fake_stack, NULL, NULL);
#endif
}

extern "C" void fibre_leave(struct fibre *f, int last)
{
#ifdef WITH_TSAN
	__tsan_switch_to_fiber(home.tsan, 0);
#endif
#ifdef WITH_ASAN
	__sanitizer_start_switch_fiber(last ? NULL : &f->fake_stack, home.stack, home.stack_bytes);
#endif
	(void)last;
#if defined(__x86_64__)
	cudasim_swap(&f->sp, home.sp);
#else
	swapcontext(&f->ctx, &home.ctx);
#endif
	arrived_in_fibre(f);
}
