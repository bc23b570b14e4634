#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_formula.py KVPOOL_H LIBRARY: the address formula in the header's comment is the one the library
goes by. It is read from the comment as it stands there, and compared with the strides that
kvp_view_dense() gives for a buffer of one block, which is laid out as a payload is."""
import ctypes
import re
import sys

T, BASE = 16, 1 << 20
LAYERS = [(2, 8, 4), (3, 4, 6), (1, 10, 0), (2, 5, 5)]  # kv_heads, k_dim, v_dim
DTYPES = {1: 4, 3: 2, 4: 1}  # KVP_DTYPE_*: bytes of an element
LAYOUTS = {"NCLD": 0, "LCND": 1}


class Layer(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("index", "kv_heads", "first_head", "k_dim", "v_dim")]


class Desc(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("adapter", ctypes.c_char_p),
                ("tokenizer", ctypes.c_char_p), ("weights_digest", ctypes.c_uint8 * 32),
                ("dtype", ctypes.c_uint32), ("layout", ctypes.c_uint32),
                ("block_tokens", ctypes.c_uint32), ("n_layers", ctypes.c_uint32),
                ("layers", ctypes.POINTER(Layer))]


class OpenOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("name", ctypes.c_char_p),
                ("default_timeout_ms", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class Plane(ctypes.Structure):
    _fields_ = [("k", ctypes.c_void_p), ("v", ctypes.c_void_p)] + \
        [(n, ctypes.c_size_t) for n in ("kt", "kh", "vt", "vh", "kp", "vp", "kc", "vc")]


def formulas(header):
    """{("NCLD", "K"): code}, from the comment above KVP_LAYOUT_NCLD."""
    with open(header, encoding="utf-8") as f:
        comment = f.read().split("#define KVP_LAYOUT_NCLD")[0].rsplit("/*", 1)[1]
    found, layout = {}, None
    for line in comment.splitlines():
        m = re.match(r" \*\s+(NCLD|LCND)\s+\[", line)
        layout = m.group(1) if m else layout
        m = re.match(r" \*\s+([KV]): (.+)$", line)
        if m and layout:
            found[layout, m.group(1)] = compile(m.group(2), header, "eval")
    return found


def places(formula, e):
    """Where the formula puts the key or value of each layer and token."""
    dk = [h * k for h, k, _ in LAYERS]
    dv = [h * v for h, _, v in LAYERS]
    for l, _ in enumerate(LAYERS):
        for t in range(T):
            yield l, t, eval(formula, {}, {  # pylint: disable=eval-used
                "e": e, "t": t, "T": T, "Dk": sum(dk), "Dv": sum(dv), "Dk_l": dk[l], "Dv_l": dv[l],
                "Dk_before": sum(dk[:l]), "Dv_before": sum(dv[:l])})


def main():
    header, library = sys.argv[1:]
    found = formulas(header)
    if sorted(found) != sorted((a, b) for a in LAYOUTS for b in "KV"):
        sys.exit("%s: the formulas cannot be read: %s" % (header, sorted(found)))
    lib = ctypes.CDLL(library)
    opts = OpenOpts(ctypes.sizeof(OpenOpts), b"/nonexistent/kvpool.sock", None, 0, 1)  # LAZY
    client, checked = ctypes.c_void_p(), 0
    assert lib.kvp_open(ctypes.byref(opts), ctypes.byref(client)) == 0
    layers = (Layer * len(LAYERS))(*(Layer(i, h, 0, k, v) for i, (h, k, v) in enumerate(LAYERS)))
    for dtype, e in DTYPES.items():
        space, planes, size = ctypes.c_void_p(), (Plane * len(LAYERS))(), ctypes.c_uint64()
        desc = Desc(ctypes.sizeof(Desc), b"formula", None, None, (ctypes.c_uint8 * 32)(), dtype, 0, T,
                    len(LAYERS), layers)
        assert lib.kvp_space_open(client, ctypes.byref(desc), 1000, ctypes.byref(space)) == 0
        for layout, number in LAYOUTS.items():
            assert lib.kvp_view_dense(space, number, ctypes.c_void_p(BASE), ctypes.c_size_t(T), planes,
                                      ctypes.byref(size)) == 0
            for l, t, at in places(found[layout, "K"], e):
                assert planes[l].k + t * planes[l].kt == BASE + at, (layout, "K", e, l, t, at)
                checked += 1
            for l, t, at in places(found[layout, "V"], e):
                if LAYERS[l][2]:
                    assert planes[l].v + t * planes[l].vt == BASE + at, (layout, "V", e, l, t, at)
                    checked += 1
        lib.kvp_space_close(space)
    lib.kvp_close(client)
    print("%d addresses" % checked)


main()
