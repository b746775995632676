"""The server's listening socket. Bound by the supervisor and handed to each entry worker, so the port outlives all of them."""

from __future__ import annotations

import socket

from millstream.errors import StartupError

BACKLOG = 2048  # connections that may wait to be accepted
UNSENT_IN_KERNEL = 16 * 1024  # bytes a connection: the rest waits with us, where it is counted, and seen to be taken


def bind(host: str, port: int) -> socket.socket:
    """A listening socket for `host` and `port` (0: any free one).

    Raises:
        StartupError: the address is in use, not ours, or no address at all.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartupError(f"`{host}` is not an address to listen on: {error}.", hint="check --host") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL)  # connections inherit it
        sock.bind(address)
        sock.listen(BACKLOG)  # here, not in the server: only now is it certain that nobody else has the port
    except (OSError, OverflowError) as error:
        sock.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {error}.", hint="another server may run there: try --port 0 for a free port"
        ) from None
    sock.set_inheritable(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a client on this machine finds a bound socket."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
