/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/storm.h"

void storm_prompt(uint32_t p, uint32_t *tokens)
{
	for (uint32_t i = 0; i < BLOCKS * T; i++)
		tokens[i] =
			i < SHARED * T ? (p % FAMILIES) * 7919 + i : 1000000 + p * 7919 + i * 31;
}

uint64_t storm_digest(const uint32_t *tokens, uint32_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < n; i++)
		h = (h ^ tokens[i]) * UINT64_C(0x100000001b3);
	return h;
}

uint64_t storm_option(int argc, char **argv, const char *name, uint64_t otherwise)
{
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], name))
			return strtoull(argv[i + 1], NULL, 0);
	return otherwise;
}

uint32_t storm_left(const char *socket)
{
	for (uint32_t tries = 0;; tries++) {
		int status;
		json_t *answer = e2e_ask(socket, "{\"verb\":\"drain\"}", &status);
		uint32_t n = (uint32_t)json_integer_value(json_object_get(answer, "in_use"));

		n = status < 0 ? 1 : n;
		if (n && tries == 1000)
			json_dumpf(answer, stderr, JSON_INDENT(2));
		json_decref(answer);
		if (!n || tries == 1000)
			return n;
		e2e_sleep_us(10000);
	}
}
