# SPDX-License-Identifier: Apache-2.0
"""_build.py KVPOOL_H OUTPUT_C: writes the C source of kvpool._native, which calls libkvpool, from the
library's header as it is, and what would take Python several calls, or a loop."""
import re
import sys

from cffi import FFI

# Ids as calls take them that take no other kind.
NARROW = "int kvpool_narrow(const void *ids, size_t n, uint32_t type, uint32_t *out)"
SOURCE = "#include <errno.h>\n#include <kvpool.h>\nstatic " + NARROW + """
{
	for (size_t i = 0; i < n; i++) {
		int64_t id;

		if (type == KVP_IDS_I64)
			id = ((const int64_t *)ids)[i];
		else if (type == KVP_IDS_I32)
			id = ((const int32_t *)ids)[i];
		else
			id = ((const uint32_t *)ids)[i];
		if (id < 0 || id > UINT32_MAX)
			return -EINVAL;
		out[i] = (uint32_t)id;
	}
	return 0;
}
"""


def declarations(header: str) -> str:
    """What the header declares, as cffi takes it: no comments, numbers of macros left to the compiler."""
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    numbers = re.findall(r"^#define (KVP_\w+)[ \t]+(?:UINT32_C\()?[0-9]", header, flags=re.M)
    body = re.sub(r"^\s*#.*$", "", header.replace("\\\n", " "), flags=re.M)
    body = body.replace("KVP_EXPORT ", "").replace('extern "C" {', "")
    body = re.sub(r"\n}\s*\Z", "\n", body.rstrip() + "\n")
    return "".join("#define %s ...\n" % n for n in sorted(set(numbers))) + body


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as f:
        header = f.read()
    ffi = FFI()
    ffi.cdef(declarations(header) + NARROW + ";")
    ffi.set_source("kvpool._native", SOURCE)
    ffi.emit_c_code(sys.argv[2])


main()
