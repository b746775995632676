"""GGUF files written by the `gguf` package, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter


def write_gguf(path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Write a file; a key that begins with a dot belongs to the architecture."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = f"{architecture}{key}" if key.startswith(".") else key
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
