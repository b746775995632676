"""The HTTP server: uvicorn on a socket of ours, with limits on its connections and no signal handlers.

Used by the entry process. The supervisor says when to stop, through the control link; nobody else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from millstream.config import ServerConfig
from millstream.entry.http.protocol import BoundedHttpProtocol

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed under a request
CLOSE_TIMEOUT_S = 2  # what open answers get to be written after the drain
TICKS_PER_LOOK = 5  # uvicorn ticks ten times a second; so often connections are looked at for clients that are silent


class EntryServer(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone. `should_exit = True` stops it."""

    def __init__(self, app: Any, config: ServerConfig) -> None:
        limits = {
            "read_timeout_s": config.read_timeout_s,
            "write_timeout_s": config.write_timeout_s,
            "max_connections": config.max_connections,
        }
        # it warns of each request that is none: anybody could fill the log
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Protocol", (BoundedHttpProtocol,), limits),
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here depends on who or what stands before us
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S + 1,  # by then `_drop_all` has ended every request
            )
        )

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second while the server runs; returns whether it must stop."""
        if counter % TICKS_PER_LOOK == 0:
            now = asyncio.get_running_loop().time()
            for connection in self._connections():
                connection.check_timeouts(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers under way be written, for `CLOSE_TIMEOUT_S`."""
        dropping = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._drop_all)
        await super().shutdown(sockets)
        dropping.cancel()

    def _drop_all(self) -> None:
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[BoundedHttpProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, BoundedHttpProtocol)]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def raise_descriptor_limit() -> None:
    """Let this process have as many connections as the system allows: the usual soft limit is 1,024 descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems refuse what they call the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
