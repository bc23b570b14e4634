/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules, functions, launches, and the kernels that tests launch by name; their PTX, for real
 * drivers, is in ptx.c. Those of the project itself are project.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/cudadrv/sim.h"

#define SLICE_WORDS 32768

static const struct sim_kernel kernels[] = {
	{ .name = "fill", .params = 3, .writes = true },
	{ .name = "check", .params = 4, .counts = true },
	{ .name = "slow_check", .params = 5, .counts = true },
	{ .name = "poke", .params = 2, .writes = true, .word = true },
	{ .name = "spin", .params = 2, .writes = true, .word = true },
};

const struct sim_kernel *sim_kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}

/* ---- their work, in slices ---- */

/* Words of the current run from where the last slice ended; how many this one does. */
static size_t words_of(const struct sim_op *op, const struct sim_run *run)
{
	size_t n = (run->bytes - op->next_byte) / 8;

	return n < SLICE_WORDS ? n : SLICE_WORDS;
}

/* Where the run lies in the kernel's bytes: those before it are all of the earlier ones. */
static uint64_t first_word(const struct sim_op *op, const struct sim_run *runs)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < op->next_run; i++)
		bytes += runs[i].bytes;
	return (bytes + op->next_byte) / 8;
}

static void step(struct sim_op *op, const struct sim_run *run, size_t words)
{
	op->next_byte += words * 8;
	if (op->next_byte == run->bytes) {
		op->next_byte = 0;
		op->next_run++;
	}
}

static enum sim_slice fill(struct sim_op *op)
{
	const struct sim_run *run = &op->to[op->next_run];
	uint64_t first;
	size_t n;

	if (op->next_run == op->runs)
		return SIM_DONE;
	n = words_of(op, run);
	first = first_word(op, op->to);
	for (size_t i = 0; i < n; i++) {
		uint64_t word = cudadrv_pattern(op->param[2], first + i);

		memcpy(run->p + op->next_byte + i * 8, &word, 8);
	}
	step(op, run, n);
	return SIM_MORE;
}

static void count_wrong(struct sim_op *op)
{
	_Atomic uint64_t *bad = (_Atomic uint64_t *)(void *)op->to[op->runs - 1].p;

	if (op->wrong == 0)
		return;
	atomic_fetch_add(bad, op->wrong);
	sim_says(CUDADRV_WRONG_DATA, "%s: %llu words of %llu bytes are not those of key %llu",
		op->kernel->name, (unsigned long long)op->wrong, (unsigned long long)op->param[1],
		(unsigned long long)op->param[2]);
}

/* The last run is the word that counts. slow_check begins anew until its time is over. */
static enum sim_slice check(struct sim_op *op, uint64_t ns)
{
	const struct sim_run *run = &op->from[op->next_run];
	uint64_t first;
	size_t n;

	if (op->next_run == op->runs - 1) {
		if (sim_now() < op->begun_ns + ns && op->wrong == 0) {
			op->next_run = 0;
			return SIM_IDLE;
		}
		count_wrong(op);
		return SIM_DONE;
	}
	n = words_of(op, run);
	first = first_word(op, op->from);
	for (size_t i = 0; i < n; i++) {
		uint64_t word;

		memcpy(&word, run->p + op->next_byte + i * 8, 8);
		op->wrong += word != cudadrv_pattern(op->param[2], first + i);
	}
	step(op, run, n);
	return SIM_MORE;
}

static enum sim_slice spin(const struct sim_op *op)
{
	atomic_fetch_add((_Atomic uint64_t *)(void *)op->to[0].p, 1);
	return sim_now() < op->begun_ns + op->param[1] ? SIM_IDLE : SIM_DONE;
}

enum sim_slice sim_kernel_slice(struct sim_op *op)
{
	switch (op->kernel - kernels) {
	case 0:
		return fill(op);
	case 1:
		return check(op, 0);
	case 2:
		return check(op, op->param[4]);
	case 3:
		atomic_store((_Atomic uint64_t *)(void *)op->to[0].p, op->param[1]);
		return SIM_DONE;
	default:
		return spin(op);
	}
}

/* ---- modules and functions ---- */

#define FATBIN_MAGIC 0xba55ed50u
#define PROJECT_MARK "// all of kernels/cuda"
#define SMEM_PLAIN   (48u << 10) /* that a launch may have without asking */
#define SMEM_MOST    (227u << 10)
#define FUNCTIONS    128

struct CUmod_st {
	struct CUmod_st *next;
	char *ptx; /* NULL: a fatbin of the project's */
};

struct CUfunc_st {
	const struct sim_kernel *kernel;
	const struct kvp_cuda_kernel *project;
	uint32_t smem; /* granted */
};

static struct CUmod_st *modules;
static struct CUfunc_st functions[FUNCTIONS];
static uint32_t n_functions;

static int module_load(struct CUmod_st **ret_module, const char *image)
{
	uint32_t magic = 0;
	struct CUmod_st *m;
	bool ptx;

	if (image)
		memcpy(&magic, image, sizeof(magic));
	ptx = image && magic != FATBIN_MAGIC;
	if (!image || (ptx && strncmp(image, ".version", 8) != 0))
		return sim_refuse(SIM_ERR_BAD_IMAGE, CUDADRV_BAD_VALUE, "an image of neither kind");
	m = calloc(1, sizeof(*m));
	if (!m || (ptx && !(m->ptx = strdup(image)))) {
		free(m);
		return CU_ERR_NO_MEMORY;
	}
	m->next = modules;
	modules = m;
	*ret_module = m;
	return CU_OK;
}

SIM_EXPORT int cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	SIM_CALL(cuModuleLoadData, SIM_INIT | SIM_CTX | SIM_UNSAFE, module_load(module, image));
}

static struct CUmod_st **module_of(const struct CUmod_st *module)
{
	struct CUmod_st **p;

	for (p = &modules; *p; p = &(*p)->next)
		if (*p == module)
			return p;
	sim_says(CUDADRV_BAD_HANDLE, "no such module");
	return NULL;
}

static int module_unload(struct CUmod_st *module)
{
	struct CUmod_st **p = module_of(module);

	if (!p)
		return CU_ERR_BAD_HANDLE;
	*p = module->next;
	free(module->ptx);
	free(module);
	return CU_OK;
}

SIM_EXPORT int cuModuleUnload(struct CUmod_st *module)
{
	SIM_CALL(cuModuleUnload, SIM_INIT | SIM_CTX | SIM_UNSAFE, module_unload(module));
}

static bool has_entry(const char *ptx, const char *name)
{
	size_t n = strlen(name);

	while ((ptx = strstr(ptx, ".entry "))) {
		ptx += 7;
		if (strncmp(ptx, name, n) == 0 && (ptx[n] == '(' || ptx[n] == ' '))
			return true;
	}
	return false;
}

/* One for each kernel, whichever module asks. */
static struct CUfunc_st *function_for(
	const struct sim_kernel *kernel, const struct kvp_cuda_kernel *project)
{
	for (uint32_t i = 0; i < n_functions; i++)
		if (functions[i].kernel == kernel && functions[i].project == project)
			return &functions[i];
	if (n_functions == FUNCTIONS)
		return NULL;
	functions[n_functions] = (struct CUfunc_st){ kernel, project, SMEM_PLAIN };
	return &functions[n_functions++];
}

static int module_function(
	struct CUfunc_st **ret_function, const struct CUmod_st *module, const char *name)
{
	struct CUmod_st **p = module_of(module);
	const struct sim_kernel *kernel = NULL;
	const struct kvp_cuda_kernel *project = NULL;

	if (!p)
		return CU_ERR_BAD_HANDLE;
	if (!module->ptx || strstr(module->ptx, PROJECT_MARK))
		project = sim_project_find(name);
	else if (has_entry(module->ptx, name))
		kernel = sim_kernel_find(name);
	if (!kernel && !project)
		return SIM_ERR_NOT_FOUND;
	*ret_function = function_for(kernel, project);
	return *ret_function ? CU_OK : CU_ERR_NO_MEMORY;
}

SIM_EXPORT int cuModuleGetFunction(
	struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
	SIM_CALL(cuModuleGetFunction, SIM_INIT | SIM_CTX, module_function(function, module, name));
}

static bool is_function(const struct CUfunc_st *f)
{
	if (f >= functions && f < functions + n_functions)
		return true;
	sim_says(CUDADRV_BAD_HANDLE, "no such function");
	return false;
}

static int function_set(struct CUfunc_st *f, int attribute, int value)
{
	if (!is_function(f))
		return CU_ERR_BAD_HANDLE;
	if (attribute != CU_FUNC_MAX_DYNAMIC_SMEM || value < 0 || (uint32_t)value > SMEM_MOST)
		return CU_ERR_INVALID_VALUE;
	f->smem = (uint32_t)value;
	return CU_OK;
}

SIM_EXPORT int cuFuncSetAttribute(struct CUfunc_st *function, int attribute, int value)
{
	SIM_CALL(cuFuncSetAttribute, SIM_INIT | SIM_CTX, function_set(function, attribute, value));
}

static int function_get(int *value, const struct CUfunc_st *f)
{
	if (!is_function(f))
		return CU_ERR_BAD_HANDLE;
	*value = 0;
	return CU_OK;
}

SIM_EXPORT int cuFuncGetAttribute(int *value, int attribute, struct CUfunc_st *function)
{
	(void)attribute;
	SIM_CALL(cuFuncGetAttribute, SIM_INIT | SIM_CTX, function_get(value, function));
}

/* ---- launches ---- */

static int take_params(struct sim_op *op, const struct CUfunc_st *f, void **params)
{
	op->kernel = f->kernel;
	op->project = f->project;
	if (f->kernel) {
		for (uint32_t i = 0; i < f->kernel->params; i++)
			memcpy(&op->param[i], params[i], 8);
		return CU_OK;
	}
	op->params = aligned_alloc(16, (f->project->param_bytes + 15) / 16 * 16);
	if (!op->params)
		return CU_ERR_NO_MEMORY;
	memcpy(op->params, params[0], f->project->param_bytes);
	return CU_OK;
}

static int launch(const struct CUfunc_st *f, const struct kvp_cuda_shape *shape,
	struct CUstream_st *stream, void **params)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	struct sim_op *op;

	if (!s)
		return r;
	if (!is_function(f))
		return CU_ERR_BAD_HANDLE;
	if (!params || shape->threads == 0 || shape->grid[0] == 0 || shape->grid[1] == 0 ||
		shape->grid[2] == 0 || shape->smem_bytes > f->smem)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"a launch of %u threads with %u bytes of shared memory, granted are %u",
			shape->threads, shape->smem_bytes, f->smem);
	op = sim_op_new(SIM_KERNEL, 0);
	if (!op)
		return CU_ERR_NO_MEMORY;
	op->shape = *shape;
	r = take_params(op, f, params);
	if (r == CU_OK)
		return sim_enqueue(s, op);
	sim_op_free(op);
	return r;
}

/* Blocks of kernels here have one dimension. */
SIM_EXPORT int cuLaunchKernel(struct CUfunc_st *function, unsigned int gx, unsigned int gy,
	unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int smem,
	struct CUstream_st *stream, void **params, void **extra)
{
	const struct kvp_cuda_shape shape = { { gx, gy, gz }, by == 1 && bz == 1 ? bx : 0, smem };

	(void)extra;
	SIM_CALL(cuLaunchKernel, SIM_INIT | SIM_CTX, launch(function, &shape, stream, params));
}
