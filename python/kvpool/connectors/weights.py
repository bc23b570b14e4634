# SPDX-License-Identifier: Apache-2.0
"""What is known of a model's weights without reading them."""
import os
from typing import List, Tuple


def weight_files(path: str) -> List[Tuple[str, int, int]]:
    """Name, size in bytes and time of each file with weights in a folder; none: it is no folder here."""
    facts = []
    for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
        if name.endswith((".safetensors", ".bin", ".pt", ".gguf")):
            s = os.stat(os.path.join(path, name))
            facts.append((name, s.st_size, s.st_mtime_ns))
    return facts
