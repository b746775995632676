"""Where sockets are: in a directory of their own, whose path is never too long for them."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from millstream.errors import StartupError
from millstream.ipc import address
from millstream.ipc.address import entry_name, make_socket_directory, socket_address


@pytest.mark.parametrize("length", [1, 60, 200])
def test_a_socket_can_be_bound_however_long_the_name_of_the_directory_for_temporary_files_is(
    tmp_path: Path, length: int
) -> None:
    parent = tmp_path / ("t" * length)
    parent.mkdir()
    directory = Path(make_socket_directory(str(parent)))
    try:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as bound:
            path = socket_address(directory, entry_name(1234567890))
            bound.bind(path)
            assert len(path) <= address.MAX_BYTES
            Path(path).unlink()
    finally:
        directory.rmdir()


def test_where_there_is_no_short_directory_the_start_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_SHORT", str(tmp_path / "nowhere"))
    with pytest.raises(StartupError) as caught:
        make_socket_directory("/" + "t" * 100)
    assert "TMPDIR" in (caught.value.hint or "")
