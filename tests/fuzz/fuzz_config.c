/* SPDX-License-Identifier: Apache-2.0 */
/* The input is a config.json. What is accepted must be inside the engine's bounds. */
#include "tools/kvrun/kvr_config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvr_error err;
	struct kvr_config c;

	if (kvr_config_parse((const char *)data, size, &err, &c) == 0 &&
		(kvr_config_check(&c, &err) < 0 || c.heads % c.kv_heads || c.head_dim % 2 ||
			c.bos >= c.vocab || c.n_eos > KVR_MAX_EOS))
		abort();
	return 0;
}
