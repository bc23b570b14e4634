/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cudadrv/cudadrv.h"

/* Registers common to those that work on the pattern: x = key * c1 + i * c2; x ^= x >> 29. */
#define PATTERN_OF_I                                 \
	"	mad.lo.u64 x, i, 0xbf58476d1ce4e5b9, k;\n" \
	"	shr.u64 y, x, 29;\n	xor.b64 x, x, y;\n"

#define CHECK_PASS                                                          \
	"	mov.u64 i, 0;\n	mov.u64 p, a;\n"                                  \
	"next:\n	setp.ge.u64 q, i, n;\n	@q bra end;\n" PATTERN_OF_I \
	"	ld.volatile.global.u64 y, [p];\n	setp.ne.u64 q, x, y;\n"          \
	"	@q add.u64 w, w, 1;\n	add.u64 i, i, 1;\n	add.u64 p, p, 8;\n	bra " \
	"next;\n"                                                           \
	"end:\n"

#define REGISTERS "	.reg .u64 a, n, k, i, x, y, p, w, b, t, u, d;\n	.reg .pred q;\n"
#define RANGE                                                                          \
	"	ld.param.u64 a, [at];\n	ld.param.u64 n, [bytes];\n	ld.param.u64 k, [key];\n" \
	"	shr.u64 n, n, 3;\n	mul.lo.u64 k, k, 0x9e3779b97f4a7c15;\n"

const char cudadrv_ptx[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .entry fill(.param .u64 at, .param .u64 bytes, .param .u64 key)\n{\n" REGISTERS
		RANGE "	mov.u64 i, 0;\n"
	"next:\n	setp.ge.u64 q, i, n;\n	@q bra end;\n" PATTERN_OF_I
	"	st.volatile.global.u64 [a], x;\n	add.u64 i, i, 1;\n	add.u64 a, a, 8;\n"
	"	bra next;\n"
	"end:\n	ret;\n}\n"
	".visible .entry check(.param .u64 at, .param .u64 bytes, .param .u64 key, "
	".param .u64 bad)\n{\n" REGISTERS RANGE
	"	ld.param.u64 b, [bad];\n	mov.u64 w, 0;\n" CHECK_PASS
	"	atom.global.add.u64 x, [b], w;\n	ret;\n}\n"
	".visible .entry slow_check(.param .u64 at, .param .u64 bytes, .param .u64 key, "
	".param .u64 bad, .param .u64 ns)\n{\n" REGISTERS RANGE
	"	ld.param.u64 b, [bad];\n	ld.param.u64 d, [ns];\n	mov.u64 w, 0;\n"
	"	mov.u64 t, %globaltimer;\n"
	"again:\n" CHECK_PASS "	setp.ne.u64 q, w, 0;\n	@q bra out;\n"
	"	mov.u64 u, %globaltimer;\n	sub.u64 u, u, t;\n	setp.lt.u64 q, u, d;\n"
	"	@q bra again;\n"
	"out:\n	atom.global.add.u64 x, [b], w;\n	ret;\n}\n"
	".visible .entry poke(.param .u64 at, .param .u64 value)\n{\n"
	"	.reg .u64 a, v;\n	ld.param.u64 a, [at];\n	ld.param.u64 v, [value];\n"
	"	st.volatile.global.u64 [a], v;\n	ret;\n}\n"
	".visible .entry spin(.param .u64 at, .param .u64 ns)\n{\n"
	"	.reg .u64 a, n, s, t, c;\n	.reg .pred p;\n"
	"	ld.param.u64 a, [at];\n	ld.param.u64 n, [ns];\n"
	"	mov.u64 s, %globaltimer;\n	mov.u64 c, 0;\n"
	"again:\n	add.u64 c, c, 1;\n	st.volatile.global.u64 [a], c;\n"
	"	mov.u64 t, %globaltimer;\n	sub.u64 t, t, s;\n"
	"	setp.lt.u64 p, t, n;\n	@p bra again;\n	ret;\n}\n";

const char cudadrv_project_image[] = ".version 7.0\n// all of kernels/cuda\n";
