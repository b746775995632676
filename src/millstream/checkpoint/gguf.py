"""GGUFFile: reads a GGUF file's metadata and finds its tensors, through a memory map.

Called by the tokenizer and the weight loader. A file is untrusted: every length is checked against what is left of the file
before anything is allocated, and whatever is wrong with it is a `StartupError`. It never copies tensor data.

Format: the GGUF specification (ggml project, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.errors import StartupError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_STRING = 8
_ARRAY = 9
_BOOL = 7
_SCALARS: dict[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_DTYPES: dict[int, str] = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class BlockType(NamedTuple):
    """How a tensor type is stored: `size` weights take `bytes` bytes."""

    name: str
    size: int
    bytes: int


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}


@dataclass(frozen=True, eq=False)
class TensorInfo:
    """One tensor as stored. `shape` is row-major (the reverse of the file's order); `data` is a read-only view of its bytes."""

    name: str
    shape: tuple[int, ...]
    type: str  # a name of `BLOCK_TYPES`
    data: NDArray[np.uint8]


class GGUFFile:
    """An open GGUF file: `metadata` in Python values (arrays as `list[str]` or numpy arrays) and `tensors` by name.

    Raises:
        StartupError: the file cannot be read, is cut short, or holds something this reader does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _Reader(path)
        if reader.take(4) != MAGIC:
            raise reader.broken("it does not begin with `GGUF`")
        self.version = reader.u32()
        if self.version not in SUPPORTED_VERSIONS:
            raise reader.broken(f"its version is {self.version}; versions 2 and 3, little-endian, are read")
        num_tensors, num_pairs = reader.u64(), reader.u64()
        self.metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = reader.string()
            self.metadata[key] = reader.value(reader.u32())
        self.tensors: dict[str, TensorInfo] = _read_tensors(reader, num_tensors, self._alignment(reader))

    def _alignment(self, reader: _Reader) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise reader.broken(f"general.alignment is {alignment}; it must be a power of two")
        return alignment


class _Reader:
    """A cursor over the mapped file. Each method checks that its bytes exist before it takes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise StartupError(f"cannot read `{path}`: {error}") from error
        self.size = len(self._map)
        self.position = 0

    def broken(self, what: str) -> StartupError:
        return StartupError(f"`{self.path}` is not a usable GGUF file: {what}.", hint="download the file again")

    def advance(self, count: int) -> int:
        """Step over `count` bytes and return where they began."""
        start = self.position
        if count > self.size - start:
            raise self.broken(f"it ends at byte {self.size}, in the middle of a value of {count} bytes at {start}")
        self.position = start + count
        return start

    def take(self, count: int) -> bytes:
        start = self.advance(count)
        return self._map[start : start + count]

    def u32(self) -> int:
        return int(_U32.unpack_from(self._map, self.advance(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._map, self.advance(8))[0])

    def string(self) -> str:
        return self._decode(self.take(self.u64()))

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.broken(f"a string before byte {self.position} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self.broken(f"metadata type {kind} at byte {self.position} is unknown")
        layout = struct.Struct(_SCALARS[kind])
        if kind == _BOOL:
            return self.take(1) != b"\0"
        return layout.unpack_from(self._map, self.advance(layout.size))[0]

    def _array(self) -> list[str] | NDArray[Any]:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self._strings(count)
        if kind not in _DTYPES:
            raise self.broken(f"an array of metadata type {kind} at byte {self.position} is not read")
        dtype = np.dtype(_DTYPES[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)

    def _strings(self, count: int) -> list[str]:
        # one loop with local names: vocabularies and merges hold a hundred thousand strings
        position, size, data, unpack = self.position, self.size, self._map, _U64.unpack_from
        if count > (size - position) // 8:
            raise self.broken(f"it is too short for an array of {count} strings at byte {position}")
        strings: list[str] = []
        for _ in range(count):
            begin = position + 8
            if begin > size or (length := unpack(data, position)[0]) > size - begin:
                raise self.broken(f"it ends at byte {size}, in the middle of a string at {position}")
            position = begin + length
            self.position = position
            strings.append(self._decode(data[begin:position]))
        return strings

    def view(self, offset: int, count: int) -> NDArray[np.uint8]:
        """Bytes as an array over the map, which lives as long as the array does."""
        return np.frombuffer(self._map, dtype=np.uint8, count=count, offset=offset)


def _read_tensors(reader: _Reader, count: int, alignment: int) -> dict[str, TensorInfo]:
    entries: list[tuple[str, tuple[int, ...], BlockType, int]] = []
    for _ in range(count):
        name = reader.string()
        num_dimensions = reader.u32()
        if num_dimensions > MAX_DIMENSIONS:
            raise reader.broken(f"tensor `{name}` has {num_dimensions} dimensions; at most {MAX_DIMENSIONS} are possible")
        shape = tuple(reader.u64() for _ in range(num_dimensions))[::-1]
        kind, offset = reader.u32(), reader.u64()
        if kind not in BLOCK_TYPES:
            known = ", ".join(block.name for block in BLOCK_TYPES.values())
            raise StartupError(
                f"tensor `{name}` of `{reader.path}` has type number {kind}, which is not supported.",
                hint=f"use a file quantised to one of {known}",
            )
        entries.append((name, shape, BLOCK_TYPES[kind], offset))
    base = -(-reader.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, block, offset in entries:
        if name in tensors:
            raise reader.broken(f"tensor `{name}` appears twice")
        tensors[name] = TensorInfo(name, shape, block.name, _tensor_bytes(reader, name, shape, block, base + offset))
    return tensors


def _tensor_bytes(reader: _Reader, name: str, shape: tuple[int, ...], block: BlockType, offset: int) -> NDArray[np.uint8]:
    weights = 1
    for length in shape:
        weights *= length  # Python integers: a hostile shape cannot wrap around
    if weights == 0 or (shape[-1] if shape else 1) % block.size:
        raise reader.broken(f"tensor `{name}` has shape {shape}, which is not whole blocks of {block.size} ({block.name})")
    num_bytes = weights // block.size * block.bytes
    if offset + num_bytes > reader.size:
        raise reader.broken(f"tensor `{name}` needs bytes up to {offset + num_bytes}, but it ends at {reader.size}")
    return reader.view(offset, num_bytes)
