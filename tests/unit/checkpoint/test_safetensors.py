"""The safetensors reader against the library's writer, and broken files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from millstream.checkpoint.safetensors import open_safetensors
from millstream.errors import StartupError


def raw(header: Any, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_values_are_read_as_float32_from_every_float_type(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.25]], dtype=np.float32)
    (tmp_path / "a.safetensors").write_bytes(
        raw(
            {
                "__metadata__": {"format": "pt"},
                "f32": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]},
                "f16": {"dtype": "F16", "shape": [1, 3], "data_offsets": [12, 18]},
                "bf16": {"dtype": "BF16", "shape": [1, 3], "data_offsets": [18, 24]},
            },
            values.tobytes() + values.astype("<f2").tobytes() + (values.view(np.uint32) >> 16).astype("<u2").tobytes(),
        )
    )
    tensors = open_safetensors(tmp_path)
    assert set(tensors) == {"f32", "f16", "bf16"}
    for tensor in tensors.values():
        out = np.empty((1, 3), dtype=np.float32)
        tensor.read(out)
        np.testing.assert_array_equal(out, values)


def test_only_files_that_the_index_names_are_opened(tmp_path: Path) -> None:
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(3, np.float32)}, tmp_path / "two.safetensors")
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "other.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert {name: tensor.shape for name, tensor in open_safetensors(tmp_path).items()} == {"a": (2,), "b": (3,)}


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(StartupError, match="two files"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param({"weight_map": {"a": "../a.safetensors"}}, id="other-directory"),
        pytest.param({"weight_map": {"a": 3}}, id="a-number"),
        pytest.param({"weight_map": {"a": ["x"]}}, id="a-list"),
        pytest.param({"weight_map": 3}, id="no-map"),
        pytest.param([], id="a-list-of-nothing"),
        pytest.param({"weight_map": {"a": "missing.safetensors"}}, id="missing-file"),
    ],
)
def test_a_bad_index_is_a_startup_error(tmp_path: Path, index: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(StartupError):
        open_safetensors(tmp_path)


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "cannot read", id="empty"),
        pytest.param(b"1234", "longer than the file", id="no-header"),
        pytest.param(struct.pack("<Q", 2**63), "longer than the file", id="header-length"),
        pytest.param(struct.pack("<Q", 2) + b"{x", "does not decode", id="not-json"),
        pytest.param(raw([1]), "does not decode", id="a-list"),
        pytest.param(raw({"a": {"dtype": "F32"}}), "does not decode", id="missing-fields"),
        pytest.param(raw(entry([2], [0, 8])), "does not fit", id="cut-short"),
        pytest.param(raw(entry([2], [0, 4]), bytes(8)), "does not fit", id="too-few-bytes"),
        pytest.param(raw(entry([2], [4, -4]), bytes(8)), "does not fit", id="negative-end"),
        pytest.param(raw(entry([-1, -2], [0, 8]), bytes(8)), "does not fit", id="negative-shape"),
        pytest.param(raw(entry([2**40, 2**40], [0, 8]), bytes(8)), "does not fit", id="huge-shape"),
        pytest.param(raw(entry([2], [0, 2], "I8"), bytes(8)), "type I8", id="integers"),
    ],
)
def test_a_broken_file_is_refused_with_its_fault(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(StartupError, match=message):
        open_safetensors(tmp_path)
