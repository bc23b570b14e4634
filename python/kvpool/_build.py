# SPDX-License-Identifier: Apache-2.0
"""_build.py KVPOOL_H OUTPUT_C: writes the C source of kvpool._native, which calls libkvpool, from the
library's header as it is."""
import re
import sys

from cffi import FFI


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
    ffi.cdef(declarations(header))
    ffi.set_source("kvpool._native", "#include <kvpool.h>")
    ffi.emit_c_code(sys.argv[2])


main()
