/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/cudasim/sim_device.h"

/* clang-format off */
#define ATTENTIONS(X) \
	X(f16, f16) \
	X(bf16, bf16) \
	X(e4m3, e4m3) \
	X(e5m2, e5m2) \
	X(aff4, aff4) \
	X(aff2, aff2) \
	X(tq4, tq4) \
	X(tq3, tq3) \
	X(tq2, tq2) \
	X(e4m3, aff4) \
	X(tq4, aff4) \
	X(tq3, aff4) \
	X(i8, i8) \
	X(aff3, aff3) \
	X(tq3, aff3)

#define KERNELS(X) \
	X(plane_begin) \
	X(native_encode) \
	X(native_decode) \
	X(tq_encode_64) \
	X(tq_encode_128) \
	X(tq_encode_256) \
	X(tq_encode_any) \
	X(tq_decode_64) \
	X(tq_decode_128) \
	X(tq_decode_256) \
	X(tq_decode_any) \
	X(byte_encode) \
	X(byte_decode) \
	X(asym_encode) \
	X(chan_encode) \
	X(affine_decode) \
	X(copy) \
	X(runs) \
	X(attend_any) \
	X(rotate) \
	X(mass) \
	X(merge)
/* clang-format on */

#define DECLARE(name) void kvp_cu_##name(const void *params);
#define DECLARE_ATTEND(k, v)           \
	DECLARE(attend_##k##_##v##_64) \
	DECLARE(attend_##k##_##v##_128)
KERNELS(DECLARE)
ATTENTIONS(DECLARE_ATTEND)

#define ROW(name) { "kvp_cu_" #name, kvp_cu_##name },
#define ROW_ATTEND(k, v)           \
	ROW(attend_##k##_##v##_64) \
	ROW(attend_##k##_##v##_128)

static const struct {
	const char *name;
	void (*fn)(const void *params);
} kernels[] = { KERNELS(ROW) ATTENTIONS(ROW_ATTEND) };

void (*sim_find(const char *name))(const void *params)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return kernels[i].fn;
	return NULL;
}
