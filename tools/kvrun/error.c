/* SPDX-License-Identifier: Apache-2.0 */
/* Formats messages about a wrong model, tokenizer or prompt. */
#include "tools/kvrun/kvr_error.h"

#include <stdarg.h>
#include <stdio.h>

int kvr_fail(struct kvr_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	for (char *p = err->text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return code;
}
