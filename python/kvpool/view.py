# SPDX-License-Identifier: Apache-2.0
"""The caller's memory as the library takes it: token ids, and views of tensors of keys and values."""
import array
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._native import ffi, lib

if TYPE_CHECKING:
    from .client import Space


class Array(NamedTuple):
    """Where the elements of a caller's array lie; strides are bytes. `owner` keeps it there."""
    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    itemsize: int
    kind: str  # of numpy: "f", "i", "u" ...
    readonly: bool
    owner: Any


def _dense(shape: Tuple[int, ...], itemsize: int) -> Tuple[int, ...]:
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


_KINDS = {"e": "f", "f": "f", "d": "f", "b": "i", "h": "i", "i": "i", "l": "i", "q": "i",
          "B": "u", "H": "u", "I": "u", "L": "u", "Q": "u"}


def describe(obj: Any) -> Array:
    """An array of numpy or torch, or anything with the buffer protocol, without a copy."""
    interface = getattr(obj, "__array_interface__", None)
    if interface is not None:
        kind, size = interface["typestr"][1], int(interface["typestr"][2:])
        if interface["typestr"][0] == ">":
            raise ValueError("the elements' bytes are in the order of another machine")
        shape = tuple(interface["shape"])
        address, readonly = interface["data"]
        return Array(address, shape, interface.get("strides") or _dense(shape, size), size, kind,
                     readonly, obj)
    if hasattr(obj, "data_ptr"):  # a tensor of torch
        if obj.device.type != "cpu":
            raise ValueError("the tensor is not in the CPU's memory")
        size = obj.element_size()
        kind = "f" if obj.dtype.is_floating_point else "u" if "uint" in str(obj.dtype) else "i"
        return Array(obj.data_ptr(), tuple(obj.shape), tuple(s * size for s in obj.stride()), size,
                     kind, False, obj)
    buffer = memoryview(obj)
    if buffer.strides is None or buffer.format is None or buffer.format.lstrip("@=<") not in _KINDS:
        raise ValueError("no array of numbers: format %r" % buffer.format)
    whole = ffi.from_buffer(buffer) if buffer.contiguous else None
    if whole is None:
        raise ValueError("a buffer with gaps: give an array of numpy, or a tensor")
    return Array(int(ffi.cast("uintptr_t", whole)), buffer.shape or (), buffer.strides,
                 buffer.itemsize, _KINDS[buffer.format.lstrip("@=<")], buffer.readonly, whole)


_IDS = ffi.typeof("struct kvp_ids *")
_IDS_KINDS = {("u", 4): lib.KVP_IDS_U32, ("i", 4): lib.KVP_IDS_I32, ("i", 8): lib.KVP_IDS_I64,
              # an id of more than 63 bits reads as negative, and is refused like that
              ("u", 8): lib.KVP_IDS_I64}


# Arrays of the standard library, by what they say of themselves without a buffer being made.
_ARRAYS = {c: _IDS_KINDS[_KINDS[c], array.array(c).itemsize] for c in "iIlLqQ"}


class Ids:
    """Token ids or page numbers as the library takes them, without a copy of arrays of 32 or 64 bits; a list
    of Python's numbers is copied once."""

    __slots__ = ("address", "n", "kind", "_owner")

    def __init__(self, numbers: Any) -> None:
        if numbers.__class__ in (list, tuple, range):
            numbers = array.array("q", numbers)
        if numbers.__class__ is array.array:
            kind, plain = _ARRAYS.get(numbers.typecode), True
            self.address = self._owner = ffi.from_buffer(numbers)
            self.n = len(numbers)
        else:
            kind, plain = self._describe(numbers)
        if kind is None or not plain:
            raise ValueError("ids are a dense array of one dimension, of 32-bit or 64-bit integers")
        self.kind: int = kind

    def _describe(self, numbers: Any) -> Tuple[Optional[int], bool]:
        """What is not of the standard library."""
        try:
            buffer = memoryview(numbers)
        except (TypeError, ValueError, BufferError):
            a = describe(numbers)
            self.address, self._owner = ffi.cast("void *", a.address), numbers
            self.n = a.shape[0] if a.shape else 0
            return (_IDS_KINDS.get((a.kind, a.itemsize)),
                    len(a.shape) == 1 and (a.strides == (a.itemsize,) or a.shape[0] < 2))
        plain = buffer.ndim == 1 and buffer.contiguous
        self.address = self._owner = ffi.from_buffer(buffer) if plain else None
        self.n = len(buffer) if buffer.ndim else 0
        # the size as it is: that of "l" depends on what stands before it
        return _IDS_KINDS.get((_KINDS.get((buffer.format or "").lstrip("@=<"), ""),
                               buffer.itemsize)), plain

    @property
    def struct(self) -> Any:
        """As struct kvp_ids, which does not keep the array."""
        return ffi.new(_IDS, (self.address, self.n, self.kind))

    def __len__(self) -> int:
        return self.n


class View:
    """Tensors of keys and values that Match.get() writes and Space.put() reads.

    planes: (keys, values) for each layer, arrays of numpy, tensors of torch on the CPU, or None for
    what is left out of a get. Elements are of the space's size; channels, or any other axis, may have
    any stride.

    axes: what the dimensions of each array are, one letter each: "t" tokens, "h" heads, "d" channels,
    and in memory of pages "p" pages: "thd" is [tokens, heads, dim], "pthd" vLLM's [blocks, block_size,
    heads, dim], "phd" a pool of tokens that `pages` has indices into.

    pages: with "p", the request's table: the page of each page_tokens tokens, in the sequence's order,
    as 32-bit or 64-bit numbers.
    first_slot: with "p", where in the table's order the call's first token lies.
    layers: positions in the space's list that the planes are, ascending; None: all, or the first.
    first_head: where a subset of heads begins; how many there are the arrays say.
    """

    def __init__(self, space: "Space", planes: Sequence[Tuple[Any, Any]], axes: str = "thd", *,
                 pages: Any = None, first_slot: int = 0, layers: Optional[Sequence[int]] = None,
                 first_head: int = 0) -> None:
        if sorted(axes) not in (sorted("thd"), sorted("pthd"), sorted("phd")):
            raise ValueError("axes: each of t, h, d once, and p for pages")
        paged = "p" in axes
        if paged == (pages is None) or (first_slot and not paged):
            raise ValueError("pages and first_slot go with the axis p")
        self.writable = True
        self.tokens: Optional[int] = None  # that there is place for; None: the table says
        self._sizes: Dict[str, int] = {}
        self._keep: List[Any] = [space]
        self._planes = ffi.new("struct kvp_view_plane[]", len(planes))
        for i, (keys, values) in enumerate(planes):
            layer = layers[i] if layers is not None else i
            if not 0 <= layer < len(space.layers):
                raise ValueError("the space has %d layers" % len(space.layers))
            self._half(self._planes[i], "k", keys, axes, space.layers[layer][1], space.itemsize)
            self._half(self._planes[i], "v", values, axes, space.layers[layer][2], space.itemsize)
        v = self.struct = ffi.new("struct kvp_view *")
        v.size = ffi.sizeof("struct kvp_view")
        v.n_layers = len(planes)
        v.first_head = first_head
        v.n_heads = self._sizes.get("h", 0)
        v.planes = self._planes
        if layers is not None:
            v.layers = self._layers = ffi.new("uint32_t[]", list(layers))
        if paged:
            v.page_tokens = self._sizes.get("t", 1) if "t" in axes else 1
            v.pool_pages = self._sizes.get("p", 0)
            table = Ids(pages)
            self._keep.append(table)
            v.pages = table.struct[0]
            v.first_slot = first_slot
        else:
            self.tokens = self._sizes.get("t", 0)

    def _half(self, plane: Any, which: str, obj: Any, axes: str, dim: int, itemsize: int) -> None:
        if obj is None:
            return
        a = describe(obj)
        if len(a.shape) != len(axes) or a.itemsize != itemsize:
            raise ValueError("an array of %d dimensions with elements of %d bytes is no %r of this "
                             "space's, whose elements have %d" % (len(a.shape), a.itemsize, axes,
                                                                  itemsize))
        if min(a.strides, default=0) < 0:
            raise ValueError("strides below 0")
        sizes, strides = dict(zip(axes, a.shape)), dict(zip(axes, a.strides))
        if sizes.pop("d") != dim:
            raise ValueError("%d channels, and the space has %d" % (a.shape[axes.index("d")], dim))
        for axis, n in sizes.items():
            if self._sizes.setdefault(axis, n) != n or not n:
                raise ValueError("the arrays disagree about the axis %r, or it is empty" % axis)
        setattr(plane, which, ffi.cast("void *", a.address))
        for axis, name in (("p", "page"), ("t", "token"), ("h", "head"), ("d", "channel")):
            if axis in strides:
                setattr(plane, "%s_%s_stride" % (which, name), strides[axis])
        self.writable = self.writable and not a.readonly
        self._keep.append(a)
