# SPDX-License-Identifier: Apache-2.0
# What cffi makes of kvpool.h.
from typing import Any

ffi: Any
lib: Any
