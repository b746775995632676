"""open_safetensors: reads float32 arrays out of a directory's safetensors files, through a memory map and without torch.

Called by the weight reader. Files are untrusted: every length is checked before it is used.

Format: the safetensors specification (8 bytes of header length, a JSON header, then the data).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from millstream.errors import StartupError

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor as stored; `data` is a read-only view of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def read(self, out: NDArray[np.float32]) -> None:
        """Write the values as float32 into `out`, an array of the same shape."""
        if self.dtype == "BF16":
            # bfloat16 is the upper half of a float32
            np.left_shift(self.data.view("<u2").reshape(self.shape), 16, out=out.view(np.uint32), dtype=np.uint32)
        else:
            out[...] = self.data.view("<f4" if self.dtype == "F32" else "<f2").reshape(self.shape)


def open_safetensors(folder: Path) -> dict[str, StoredTensor]:
    """Map every tensor that the directory's index names, or, without an index, that its safetensors files hold.

    Raises:
        StartupError: a file is missing, cut short or not what the format says, or a type other than F32, F16, BF16 is stored.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _files(folder):
        for name, tensor in _open_file(path).items():
            if name in tensors:
                raise StartupError(f"tensor `{name}` is in two files of `{folder}`.")
            tensors[name] = tensor
    return tensors


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = set(msgspec.json.decode(index.read_bytes(), type=dict[str, Any]).get("weight_map", {}).values())
    except (OSError, msgspec.DecodeError, AttributeError, TypeError) as error:
        raise StartupError(f"cannot read `{index}`: {error}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:  # an index must not lead out of its directory
            raise StartupError(f"`{index}` names the file `{name}`, which is not a plain file name.")
    return sorted(folder / name for name in names)


def _open_file(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise StartupError(f"cannot read `{path}`: {error}") from error
    length = struct.unpack("<Q", data[:8].tobytes())[0] if len(data) >= 8 else len(data)
    if length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise _broken(path, "its header is longer than the file")
    try:
        header = msgspec.json.decode(data[8 : 8 + length].tobytes(), type=dict[str, Any])
        header.pop("__metadata__", None)
        entries = msgspec.convert(header, dict[str, _Entry])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, f"its header does not decode ({error})") from error
    body = data[8 + length :]
    return {name: _tensor(path, name, entry, body) for name, entry in entries.items()}


def _tensor(path: Path, name: str, entry: _Entry, body: NDArray[np.uint8]) -> StoredTensor:
    if entry.dtype not in _SIZES:
        raise StartupError(f"tensor `{name}` of `{path}` has type {entry.dtype}; F32, F16 and BF16 are read.")
    num_bytes = _SIZES[entry.dtype]
    for size in entry.shape:
        num_bytes *= size
    begin, end = entry.data_offsets
    if not (0 <= begin <= end <= len(body) and end - begin == num_bytes and all(size >= 0 for size in entry.shape)):
        raise _broken(path, f"tensor `{name}` of shape {entry.shape} does not fit its bytes {begin} to {end}")
    return StoredTensor(entry.dtype, tuple(entry.shape), body[begin:end])


def _broken(path: Path, what: str) -> StartupError:
    return StartupError(f"`{path}` is not a usable safetensors file: {what}.", hint="download the file again")
