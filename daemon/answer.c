/* SPDX-License-Identifier: Apache-2.0 */
/* Members of JSON answers. */
#include "daemon/answer.h"

#include <inttypes.h>
#include <stdio.h>

void kvpd_put_word(json_t *o, const char *name, uint64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	json_object_set_new(o, name, json_string(text));
}

void kvpd_put_int(json_t *o, const char *name, uint64_t v)
{
	if (v > UINT64_C(1) << 53)
		kvpd_put_word(o, name, v);
	else
		json_object_set_new(o, name, json_integer((json_int_t)v));
}

void kvpd_put_text(json_t *o, const char *name, const char *v)
{
	json_t *text = json_string(v);

	/* Names come from clients and need not be UTF-8. */
	json_object_set_new(o, name, text ? text : json_string("?"));
}

void kvpd_put_seconds(json_t *o, const char *name, uint64_t ns)
{
	json_object_set_new(o, name, json_real((double)ns / 1e9));
}

void kvpd_put_bool(json_t *o, const char *name, bool v)
{
	json_object_set_new(o, name, json_boolean(v));
}
