"""Packed weights on disk: made once, used again, made again where anything differs, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from millstream.execution.native.packed_cache import Bytes, PackedCache


class Packer:
    """Writes the numbers from `first` on, and counts."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.calls = 0

    def __call__(self, out: Bytes) -> None:
        self.calls += 1
        out[:] = np.arange(self.first, self.first + len(out)) % 251


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def test_what_was_packed_once_is_mapped_later(tmp_path: Path, model: Path) -> None:
    packer = Packer()
    first = PackedCache(tmp_path / "cache").load(model, 5000, packer)
    second = PackedCache(tmp_path / "cache").load(model, 5000, packer)
    assert packer.calls == 1
    np.testing.assert_array_equal(first, second)
    assert not second.flags.writeable


def test_a_file_with_the_same_content_elsewhere_is_the_same_model(tmp_path: Path, model: Path) -> None:
    packer = Packer()
    PackedCache(tmp_path / "cache").load(model, 100, packer)
    other = tmp_path / "copy.gguf"
    other.write_bytes(model.read_bytes())
    PackedCache(tmp_path / "cache").load(other, 100, packer)
    assert packer.calls == 1


def test_another_content_is_packed_anew_though_name_and_size_are_the_same(tmp_path: Path, model: Path) -> None:
    cache = PackedCache(tmp_path / "cache")
    cache.load(model, 100, Packer())
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(1, 1))
    assert cache.load(model, 100, Packer(7))[0] == 7


def test_a_packing_that_fails_leaves_nothing_behind(tmp_path: Path, model: Path) -> None:
    def fail(out: Bytes) -> None:
        raise ValueError("broken")

    cache = PackedCache(tmp_path / "cache")
    with pytest.raises(ValueError, match="broken"):
        cache.load(model, 100, fail)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]
    assert cache.load(model, 100, Packer(3))[0] == 3


def test_a_place_that_cannot_be_written_to_costs_only_time(tmp_path: Path, model: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    assert PackedCache(tmp_path / "cache").load(model, 100, Packer(9))[0] == 9


def test_a_list_of_digests_that_is_broken_is_made_again(tmp_path: Path, model: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "digests.json").write_text("{")
    packer = Packer()
    PackedCache(tmp_path / "cache").load(model, 100, packer)
    PackedCache(tmp_path / "cache").load(model, 100, packer)
    assert packer.calls == 1
