/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with the names of the driver's functions and nothing behind them, for the loader's test.
 * STUB_LACKS: one that every driver has is missing; STUB_OLD: so are the optional ones.
 */
#ifdef STUB_LACKS
#define cuMemCreate cuMemCreate_that_nobody_looks_for
#endif

#include "gpu/kvp_cu.h"

#define EXPORT __attribute__((visibility("default")))
#define STUB(name, args)                \
	EXPORT int name args;           \
	EXPORT int name args            \
	{                               \
		return CU_ERR_NOT_INIT; \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"
CU_FUNCTIONS(STUB)
#ifndef STUB_OLD
CU_OPTIONAL(STUB)
#endif
