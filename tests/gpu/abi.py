#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""abi.py ROOT COMPILER...: gpu/kvp_cu.h says what cuda.h says: every function's symbol and
parameters, every structure's layout, every number. Skipped (77) where there is no cuda.h of 13.0,
the version that the symbols' suffixes are written for."""
import os
import re
import subprocess
import sys
import tempfile

# Ours -> cuda.h's. Whatever is not here has to be called the same.
TYPES = {
    "struct CUctx_st *": "CUcontext", "struct CUmod_st *": "CUmodule", "struct CUfunc_st *": "CUfunction",
    "struct CUstream_st *": "CUstream", "struct CUevent_st *": "CUevent", "struct CUgraph_st *": "CUgraph",
    "struct CUgraphExec_st *": "CUgraphExec", "struct cu_uuid": "CUuuid", "struct cu_location": "CUmemLocation",
    "struct cu_alloc_prop": "CUmemAllocationProp", "struct cu_access": "CUmemAccessDesc",
    "struct cu_ipc_handle": "CUipcMemHandle", "struct cu_copy_attr": "CUmemcpyAttributes",
}
NUMBERS = {
    "CU_OK": "CUDA_SUCCESS", "CU_ERR_INVALID_VALUE": "CUDA_ERROR_INVALID_VALUE",
    "CU_ERR_NO_MEMORY": "CUDA_ERROR_OUT_OF_MEMORY", "CU_ERR_NOT_INIT": "CUDA_ERROR_NOT_INITIALIZED",
    "CU_ERR_SHUTDOWN": "CUDA_ERROR_DEINITIALIZED", "CU_ERR_NO_CONTEXT": "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CU_ERR_MPS_FIRST": "CUDA_ERROR_MPS_CONNECTION_FAILED", "CU_ERR_MPS_LAST": "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "CU_ERR_UNAVAILABLE": "CUDA_ERROR_DEVICE_UNAVAILABLE", "CU_ERR_NO_DEVICE": "CUDA_ERROR_NO_DEVICE",
    "CU_ERR_BAD_CONTEXT": "CUDA_ERROR_INVALID_CONTEXT", "CU_ERR_ECC": "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CU_ERR_CONTAINED": "CUDA_ERROR_CONTAINED", "CU_ERR_BAD_HANDLE": "CUDA_ERROR_INVALID_HANDLE",
    "CU_NOT_READY": "CUDA_ERROR_NOT_READY", "CU_ERR_REGISTERED": "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    "CU_ERR_UNREGISTERED": "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
    "CU_ERR_NOT_PERMITTED": "CUDA_ERROR_NOT_PERMITTED", "CU_ERR_UNSUPPORTED": "CUDA_ERROR_NOT_SUPPORTED",
    "CU_ERR_CAPTURING": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "CU_ATTR_SM_COUNT": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "CU_ATTR_COMPUTE_MODE": "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE", "CU_ATTR_PCI_BUS": "CU_DEVICE_ATTRIBUTE_PCI_BUS_ID",
    "CU_ATTR_PCI_DEVICE": "CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID",
    "CU_ATTR_PCI_DOMAIN": "CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID",
    "CU_ATTR_CC_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "CU_ATTR_CC_MINOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "CU_ATTR_HOST_SAME_VA": "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "CU_ATTR_HOST_REGISTER": "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED",
    "CU_ATTR_VMM": "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "CU_ATTR_POSIX_FD": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "CU_ATTR_READ_ONLY_REG": "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED",
    "CU_ATTR_MEM_OPS_64": "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
    "CU_ATTR_MPS": "CU_DEVICE_ATTRIBUTE_MPS_ENABLED", "CU_ATTR_HOST_NUMA_ID": "CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID",
    "CU_ATTR_HOST_NUMA_VMM": "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "CU_COMPUTE_DEFAULT": "CU_COMPUTEMODE_DEFAULT", "CU_COMPUTE_PROHIBITED": "CU_COMPUTEMODE_PROHIBITED",
    "CU_COMPUTE_EXCLUSIVE": "CU_COMPUTEMODE_EXCLUSIVE_PROCESS",
    "CU_FUNC_LOCAL_BYTES": "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES", "CU_FUNC_REGS": "CU_FUNC_ATTRIBUTE_NUM_REGS",
    "CU_FUNC_MAX_DYNAMIC_SMEM": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "CU_LOC_DEVICE": "CU_MEM_LOCATION_TYPE_DEVICE", "CU_LOC_HOST": "CU_MEM_LOCATION_TYPE_HOST",
    "CU_LOC_HOST_NUMA": "CU_MEM_LOCATION_TYPE_HOST_NUMA", "CU_MEM_PINNED": "CU_MEM_ALLOCATION_TYPE_PINNED",
    "CU_HANDLE_FD": "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", "CU_PROT_READ": "CU_MEM_ACCESS_FLAGS_PROT_READ",
    "CU_PROT_RW": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE", "CU_GRAN_MINIMUM": "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
    "CU_GRAN_BEST": "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED",
    "CU_IPC_LAZY_PEER": "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", "CU_IPC_BYTES": "CU_IPC_HANDLE_SIZE",
    "CU_SCHED_BLOCKING": "CU_CTX_SCHED_BLOCKING_SYNC", "CU_REG_PORTABLE": "CU_MEMHOSTREGISTER_PORTABLE",
    "CU_REG_DEVICEMAP": "CU_MEMHOSTREGISTER_DEVICEMAP", "CU_REG_READ_ONLY": "CU_MEMHOSTREGISTER_READ_ONLY",
    "CU_STREAM_ASYNC": "CU_STREAM_NON_BLOCKING", "CU_WAIT_GEQ": "CU_STREAM_WAIT_VALUE_GEQ",
    "CU_WRITE_PLAIN": "CU_STREAM_WRITE_VALUE_DEFAULT", "CU_EVENT_BLOCKING": "CU_EVENT_BLOCKING_SYNC",
    "CU_EVENT_NO_TIMING": "CU_EVENT_DISABLE_TIMING", "CU_CAPTURE_GLOBAL": "CU_STREAM_CAPTURE_MODE_GLOBAL",
    "CU_CAPTURE_LOCAL": "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
    "CU_CAPTURE_RELAXED": "CU_STREAM_CAPTURE_MODE_RELAXED", "CU_CAPTURE_NONE": "CU_STREAM_CAPTURE_STATUS_NONE",
    "CU_CAPTURE_ACTIVE": "CU_STREAM_CAPTURE_STATUS_ACTIVE", "CU_PTR_CONTEXT": "CU_POINTER_ATTRIBUTE_CONTEXT",
    "CU_PTR_MEMORY_TYPE": "CU_POINTER_ATTRIBUTE_MEMORY_TYPE", "CU_PTR_DEVICE": "CU_POINTER_ATTRIBUTE_DEVICE_POINTER",
    "CU_PTR_MANAGED": "CU_POINTER_ATTRIBUTE_IS_MANAGED", "CU_PTR_ORDINAL": "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
    "CU_PTR_LEGACY_IPC": "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE",
    "CU_PTR_START": "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR", "CU_PTR_BYTES": "CU_POINTER_ATTRIBUTE_RANGE_SIZE",
    "CU_PTR_MAPPED": "CU_POINTER_ATTRIBUTE_MAPPED", "CU_PTR_ACCESS": "CU_POINTER_ATTRIBUTE_ACCESS_FLAGS",
    "CU_MEMORY_HOST": "CU_MEMORYTYPE_HOST", "CU_MEMORY_DEVICE": "CU_MEMORYTYPE_DEVICE",
    "CU_ORDER_STREAM": "CU_MEMCPY_SRC_ACCESS_ORDER_STREAM", "CU_ORDER_ANY": "CU_MEMCPY_SRC_ACCESS_ORDER_ANY",
    "CU_COPY_OVERLAP": "CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE",
}
STRUCTS = {  # ours: cuda.h's, and the last member of both
    "cu_uuid": ("CUuuid", "bytes", "bytes"), "cu_location": ("CUmemLocation", "id", "id"),
    "cu_alloc_prop": ("CUmemAllocationProp", "reserved", "allocFlags.reserved"),
    "cu_access": ("CUmemAccessDesc", "flags", "flags"), "cu_ipc_handle": ("CUipcMemHandle", "bytes", "reserved"),
    "cu_copy_attr": ("CUmemcpyAttributes", "flags", "flags"),
}
FUNCTION = re.compile(r"X\((cu\w+),\s*\(((?:[^()]|\([^()]*\))*)\)\)")


def compiles(compiler, flags, text):
    with tempfile.TemporaryDirectory() as d:
        source = os.path.join(d, "abi.c")
        with open(source, "w", encoding="ascii") as f:
            f.write(text)
        r = subprocess.run(compiler + ["-std=c11", "-fsyntax-only", "-Wno-deprecated-declarations"] + flags
                           + [source], capture_output=True, text=True)
    return r.stderr if r.returncode else None


def functions(text, name):
    body = re.search(r"#define %s\(X\)(.*?[^\\])\n" % name, text, re.S).group(1).replace("\\\n", " ")
    return [(f, " ".join(a.split())) for f, a in FUNCTION.findall(body)]


def check_function(compiler, flags, name, args):
    """A call of cuda.h's function with variables of our types; those of handles are theirs by tag."""
    params = [] if args == "void" else [a.strip() for a in args.split(",")]
    decl, call = [], []
    for i, p in enumerate(params):
        kind = re.sub(r"\w+$", "", p)
        for ours, theirs in TYPES.items():
            if not ours.endswith("*"):
                kind = kind.replace(ours + " ", theirs + " ")
        kind = kind.replace("uint64_t", "unsigned long long")
        decl.append("%s p%d" % (kind, i))
        call.append("p%d" % i)
    # The declaration of the exact symbol stands behind a switch of cuda.h or under its plain name,
    # which is #defined to the symbol; so the symbol's name can be called either way.
    text = "#include <cuda.h>\nint f(%s);\nint f(%s) { return (int)%s(%s); }\n" % (
        ", ".join(decl) or "void", ", ".join(decl) or "void", name, ", ".join(call))
    error = compiles(compiler, flags + ["-Werror", "-Wall", "-Wextra"], text)
    return ["%s: %s" % (name, error)] if error else []


def main():
    root, compiler = sys.argv[1], sys.argv[2:]
    flags = ["-I", root, "-isystem", "/usr/local/cuda/include"]
    if compiles(compiler, flags, "#include <cuda.h>\n#if CUDA_VERSION < 13000 || CUDA_VERSION >= 14000\n#error\n#endif\n"):
        print("skipped: no cuda.h of 13.x")
        return 77
    with open(os.path.join(root, "gpu", "kvp_cu.h"), encoding="utf-8") as f:
        header = f.read()
    plain = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    bad = []
    ours = set(re.findall(r"^#define (CU_\w+)\s+\d+", plain, re.M))
    bad += ["%s: not compared with cuda.h" % n for n in sorted(ours - set(NUMBERS))]
    text = "#include <cuda.h>\n#undef cuMemcpyBatchAsync\n#include <stddef.h>\n#include \"gpu/kvp_cu.h\"\n"
    for n, theirs in NUMBERS.items():
        text += '_Static_assert(%s == (int)%s, "%s");\n' % (n, theirs, n)
    for s, (theirs, last, their_last) in STRUCTS.items():
        text += '_Static_assert(sizeof(struct %s) == sizeof(%s), "%s");\n' % (s, theirs, s)
        text += '_Static_assert(offsetof(struct %s, %s) == offsetof(%s, %s), "%s");\n' % (
            s, last, theirs, their_last, s)
    error = compiles(compiler, flags + ["-Werror"], text)
    bad += [error] if error else []
    listed = functions(plain, "CU_FUNCTIONS") + functions(plain, "CU_OPTIONAL")
    for name, args in listed:
        if name != "cuMemcpyBatchAsync":  # 12.8's, which this cuda.h calls by no name
            bad += check_function(compiler, flags, name, args)
    print("\n".join(bad) or "%d functions, %d numbers, %d structures" % (len(listed), len(NUMBERS), len(STRUCTS)))
    return 1 if bad or len(listed) < 80 else 0


sys.exit(main())
