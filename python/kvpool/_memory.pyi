# SPDX-License-Identifier: Apache-2.0
# Types of _memory.c.
import array
from typing import Any, Callable, Dict, Optional, Tuple, Type, TypeVar, Union

class Held:
    exports: int
    closed: bool
    def __init__(self, above: Optional[Held] = None) -> None: ...
    def _close(self) -> None: ...
    def during(self, function: Callable[..., Any], /, *args: Any) -> Any: ...
    def _release(self, function: Callable[..., Any], /, *args: Any) -> Any: ...
    def _finish(self, function: Callable[..., Any], /, *args: Any) -> bool: ...

class Found(Held):
    space: Any
    n_blocks: int
    n_tokens: int
    tail_tokens: int
    _blocks: "Optional[array.array[int]]"
    _flags: int
    _handle: int
    def __init__(self, client: Held, space: Any, handle: int) -> None: ...
    def release(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...

_F = TypeVar("_F", bound=Found)

def find(cls: Type[_F], space: Any, client: Held, handle: int, tokens: Any, flags: int,
         /) -> Union[_F, int]: ...

class Payload:
    nbytes: int
    ndim: int
    readonly: bool
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: str
    address: int
    __array_interface__: Dict[str, Any]
    def __new__(cls, held: Held, address: int, dtype: str, shape: Tuple[int, ...],
                strides: Tuple[int, ...], readonly: bool) -> Payload: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...

def move(blocks: "array.array[int]", block_bytes: int, parts: "array.array[int]",
         sizes: "array.array[int]", gather: bool, /) -> None: ...
