"""Packed weights on disk: made once, used again, made again where anything differs, and never in the way."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def packed_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache").glob("*.packed")
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content + b"x",
        lambda content: bytes(len(content)),
        lambda content: content[:4096] + bytes(len(content) - 4096),
        lambda content: os.urandom(len(content)),
        lambda content: content.replace(b"weights 1 ", b"weights 0 "),
    ],
    ids=["cut-short", "empty", "longer", "zeros", "zeros-after-the-first-page", "noise", "another-layout"],
)
def test_a_file_that_is_not_what_was_written_is_made_again(
    tmp_path: Path, model: Path, damage: Callable[[bytes], bytes]
) -> None:
    packer = Packer()
    expected = PackedCache(tmp_path / "cache").load(model, 50_000, packer).copy()
    packed_file(tmp_path).write_bytes(damage(packed_file(tmp_path).read_bytes()))
    np.testing.assert_array_equal(PackedCache(tmp_path / "cache").load(model, 50_000, packer), expected)
    assert packer.calls == 2
    PackedCache(tmp_path / "cache").load(model, 50_000, packer)
    assert packer.calls == 2


def test_another_content_is_packed_anew_though_its_time_of_change_was_set_to_that_of_the_first(
    tmp_path: Path, model: Path
) -> None:
    cache = PackedCache(tmp_path / "cache")
    os.utime(model, ns=(1, 1))  # as archives do
    cache.load(model, 100, Packer())
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(1, 1))
    assert cache.load(model, 100, Packer(7))[0] == 7


def test_where_digests_cannot_be_kept_what_is_packed_serves_all_the_same(tmp_path: Path, model: Path) -> None:
    packer = Packer()
    PackedCache(tmp_path / "cache").load(model, 100, packer)
    (tmp_path / "cache" / "digests.json").unlink()
    (tmp_path / "cache" / "digests.json").mkdir()  # cannot be written to, whoever runs this
    PackedCache(tmp_path / "cache").load(model, 100, packer)
    assert packer.calls == 1
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".json", ".packed"}


def test_what_a_killed_process_left_half_written_is_removed_and_what_another_writes_is_not(tmp_path: Path, model: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "abandoned.part").write_bytes(b"half")
    writes = (tmp_path / "cache" / "another.part").open("wb")
    with writes:
        fcntl.flock(writes, fcntl.LOCK_EX)
        PackedCache(tmp_path / "cache").load(model, 100, Packer())
    assert [path.name for path in (tmp_path / "cache").glob("*.part")] == ["another.part"]


def test_two_that_start_at_once_both_have_all_of_it(tmp_path: Path, model: Path) -> None:
    begun = threading.Barrier(2)

    def slow(out: Bytes) -> None:
        begun.wait()
        Packer()(out)

    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(PackedCache(tmp_path / "cache").load, model, 5000, slow) for _ in range(2)]
        first, second = (load.result() for load in loads)
    np.testing.assert_array_equal(first, second)
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".json", ".packed"}
