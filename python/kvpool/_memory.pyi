# SPDX-License-Identifier: Apache-2.0
# Types of _memory.c.
import array
from typing import Any, Dict, Optional, Tuple

class Held:
    exports: int
    closed: bool
    def __init__(self, above: Optional[Held] = None) -> None: ...
    def _close(self) -> None: ...

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
