#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""headers.py ROOT LANGUAGE COMPILER...: each public header compiles alone, without warnings, and
all of them together: a runtime that attends over cached blocks needs libclient and kernels.

LANGUAGE c: the installed headers as strict C11 from outside the tree, and every folder-public one.
LANGUAGE c++: the installed headers, and those that promise to be C++ as well; and each type of an
installed header can be said without `struct`, which a call of the same name would forbid, also by a
program that makes every call (tests/libclient/from_cxx.cc)."""
import glob
import os
import re
import subprocess
import sys
import tempfile

INSTALLED = ["kvpool.h", "kvpool_admin.h", "kvpool_cuda.h"]
INSTALLED_KERNELS = ["kernels/kvp_attend.h", "kernels/kvp_calib.h", "kernels/kvp_codec.h", "kernels/kvp_haar.h",
                     "kernels/kvp_nuq.h", "kernels/kvp_rope.h", "kernels/kvp_spectral.h",
                     "kernels/kvp_squat.h"]
ALSO_CXX = ["shm/kvp_types.h", "shm/kvp_abi.h", "shm/kvp_proto.h"]
CUDA_ONLY = "kernels/cuda/"


def compiles(compiler, language, flags, *include, then=""):
    with tempfile.TemporaryDirectory() as d:
        source = os.path.join(d, "alone.c")
        with open(source, "w", encoding="ascii") as f:
            # Twice: a header without a guard is no header. A translation unit must not be empty.
            f.writelines('#include "%s"\n' % i for i in include + include)
            f.write("extern int nothing;\n" + then)
        r = subprocess.run(compiler + ["-x", language, "-fsyntax-only", "-Wall", "-Wextra",
                                       "-Werror"] + flags + [source],
                           capture_output=True, text=True)
    if r.returncode:
        print("%s does not compile as %s:\n%s" % (" with ".join(include), language, r.stderr))
    return r.returncode == 0


def plain_types(root, compiler, flags, header):
    """A variable of each type that the header names, declared as C++ does it."""
    with open(os.path.join(root, header), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    types = sorted(set(re.findall(r"\bstruct (kvp_\w+)", text)))
    calls = set(re.findall(r"\b(kvp_\w+)\s*\(", text))
    both = sorted(calls & set(types))
    if both or not types:
        print("%s: a call and a type are called %s" % (header, ", ".join(both) or "nothing at all"))
        return False
    return compiles(compiler, "c++", flags, header,
                    then="".join("extern %s *a_%s;\n" % (t, t) for t in types))


def caller(root, compiler, flags):
    """A program in C++ that leaves out no call and never says struct."""
    path = os.path.abspath(os.path.join(root, "tests", "libclient", "from_cxx.cc"))
    with open(path, encoding="utf-8") as f:
        program = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    declared = set()
    for header in INSTALLED:
        with open(os.path.join(root, "libclient", header), encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/|^\s*#.*?$", "", f.read(), flags=re.S | re.M)
            declared |= set(re.findall(r"KVP_EXPORT[^;(]*?(\w+)\s*\(", text))
    missing = sorted(declared - set(re.findall(r"\b(kvp_\w+)\(", program)))
    if missing or "struct" in program:
        print("from_cxx.cc: does not call %s, or says struct" % ", ".join(missing))
        return False
    return compiles(compiler, "c++", flags, "kvpool.h", then='#include "%s"\n' % path)


def main():
    root, language, compiler = sys.argv[1], sys.argv[2], sys.argv[3:]
    installed = ["-I", os.path.join(root, "libclient"), "-pedantic"]
    inside = ["-I", root, "-D_GNU_SOURCE"]
    if language == "c":
        installed += ["-std=c11"]
        inside += ["-std=c11"]
        own = sorted(os.path.relpath(h, root)
                     for folder in ("shm", "kernels", "policy", "tools")
                     for h in glob.glob(os.path.join(root, folder, "**", "kv[pt]_*.h"),
                                        recursive=True))
        own = [h for h in own if not h.startswith(CUDA_ONLY)]
    else:
        installed += ["-std=c++11"]
        inside += ["-std=c++11"]
        own = ALSO_CXX
    ok = [compiles(compiler, language, installed, h) for h in INSTALLED]
    ok += [compiles(compiler, language, inside, h) for h in own]
    ok += [compiles(compiler, language, inside, *("libclient/" + h for h in INSTALLED), *own)]
    if language == "c++":
        ok += [plain_types(root, compiler, inside, h)
               for h in ["libclient/" + h for h in INSTALLED] + INSTALLED_KERNELS]
        ok += [caller(root, compiler, installed + ["-Wno-unused"])]
    print("%d headers" % len(ok))
    return 0 if all(ok) and len(ok) > len(INSTALLED) else 1


sys.exit(main())
