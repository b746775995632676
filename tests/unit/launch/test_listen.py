"""The listening socket: whose it is, and what a client is told."""

from __future__ import annotations

import pytest

from millstream.errors import StartupError
from millstream.launch.listen import bind, url_of


def test_a_taken_port_is_an_error_with_a_hint() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(StartupError) as caught:
            bind("127.0.0.1", taken.getsockname()[1])
    assert str(taken) not in str(caught.value)
    assert caught.value.hint
    with pytest.raises(StartupError):
        bind("no.such.host.invalid", 1)


def test_a_bound_socket_says_where_clients_find_it() -> None:
    with bind("0.0.0.0", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
