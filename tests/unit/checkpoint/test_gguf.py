"""The GGUF reader: what it reads equals what was written, and a broken file is a StartupError, whatever is broken."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.checkpoint.gguf import GGUFFile
from millstream.errors import StartupError
from tests.unit.checkpoint.gguf_files import write_gguf

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = {
        ".block_count": 2,
        "a.float": 0.5,
        "a.flag": True,
        "a.text": "Grüße 🌍",
        "a.words": ["x", "", "é"],
        "a.numbers": [1, -2, 3],
    }
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(path, "llama", metadata, {"first": WEIGHTS, "second": WEIGHTS[0]})


def test_metadata_and_tensors_are_what_was_written(small: Path) -> None:
    file = GGUFFile(small)
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["a.float"] == 0.5
    assert file.metadata["a.flag"] is True
    assert file.metadata["a.text"] == "Grüße 🌍"
    assert file.metadata["a.words"] == ["x", "", "é"]
    assert file.metadata["a.numbers"].tolist() == [1, -2, 3]
    assert file.tensors["first"].shape == (3, 4)
    assert file.tensors["first"].type == "F32"
    np.testing.assert_array_equal(file.tensors["first"].data.view("<f4").reshape(3, 4), WEIGHTS)
    np.testing.assert_array_equal(file.tensors["second"].data.view("<f4"), WEIGHTS[0])


def test_every_truncation_is_a_startup_error(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    end_of_data = len(whole) - 16  # the last tensor's padding may go
    cut = tmp_path / "cut.gguf"
    for length in range(end_of_data):
        cut.write_bytes(whole[:length])
        with pytest.raises(StartupError):
            GGUFFile(cut)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_give_a_file_or_a_startup_error(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(content)
    try:
        file = GGUFFile(changed)
    except StartupError:
        return
    assert all(tensor.data.nbytes <= len(content) for tensor in file.tensors.values())


def header(num_tensors: int, num_pairs: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_pairs)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "cannot read", id="empty"),
        pytest.param(header(0, 0, magic=b"GGML"), "begin with", id="other-format"),
        pytest.param(header(0, 0, version=1), "version is 1", id="version-1"),
        pytest.param(header(0, 0, version=0x03000000), "version", id="big-endian"),
        pytest.param(header(2**63, 0), "ends at byte", id="tensor-count"),
        pytest.param(header(0, 2**64 - 1), "ends at byte", id="pair-count"),
        pytest.param(header(0, 1) + struct.pack("<Q", 2**63), "ends at byte", id="string-length"),
        pytest.param(header(0, 1) + string(b"k") + struct.pack("<I", 99), "type 99", id="metadata-type"),
        pytest.param(header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 4, 2**62), "ends at byte", id="array-length"),
        pytest.param(header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**62), "too short", id="string-array-length"),
        pytest.param(header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1), "array of metadata type 9", id="nested-array"),
        pytest.param(header(0, 1) + string(b"k") + struct.pack("<I", 8) + string(b"\xff"), "UTF-8", id="bad-utf-8"),
        pytest.param(
            header(0, 1) + string(b"general.alignment") + struct.pack("<II", 4, 3), "power of two", id="alignment-of-3"
        ),
        pytest.param(header(1, 0) + string(b"t") + struct.pack("<I", 2**31), "dimensions", id="dimensions"),
        pytest.param(header(1, 0) + tensor(b"t", [2**40, 2**40], 0, 0), "needs bytes", id="tensor-size"),
        pytest.param(header(1, 0) + tensor(b"t", [1], 0, 2**60), "needs bytes", id="tensor-offset"),
        pytest.param(header(1, 0) + tensor(b"t", [33], 2, 0), "whole blocks", id="part-of-a-block"),
        pytest.param(header(1, 0) + tensor(b"t", [0], 0, 0), "whole blocks", id="no-weights"),
        pytest.param(header(1, 0) + tensor(b"t", [256], 16, 0), "type number 16", id="unsupported-type"),
        pytest.param(header(2, 0) + tensor(b"t", [1], 0, 0) * 2 + bytes(99), "twice", id="same-name"),
    ],
)
def test_a_broken_file_is_refused_with_its_fault(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=message):
        GGUFFile(path)


def test_a_missing_file_is_a_startup_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot read"):
        GGUFFile(tmp_path / "none.gguf")
