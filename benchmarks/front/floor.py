"""The floor: what handing an event to the kernel costs on this machine, now, with nothing else around it.

One process writes an event to each of so many loopback connections each step, another reads them. A front end that sends an
event a token cannot cost less. On a shared machine the floor moves by a factor of three, and the figures of servers with it.
"""

from __future__ import annotations

import os
import select
import socket
import time

EVENT = b"x" * 240  # as long as a chat chunk with its framing


def send_floor_us(streams: int, step_ms: float, steps: int = 200) -> float:
    """CPU microseconds of one bare `send`, `streams` of them each `step_ms`."""
    with socket.create_server(("127.0.0.1", 0), backlog=streams) as server:
        clients = [socket.create_connection(server.getsockname()) for _ in range(streams)]
        connections = [server.accept()[0] for _ in range(streams)]
    reader = os.fork()
    if reader == 0:
        for connection in connections:
            connection.close()
        _read_all(clients)
        os._exit(0)
    for client in clients:
        client.close()
    started = time.process_time()
    for _ in range(steps):
        time.sleep(step_ms / 1000)
        for connection in connections:
            connection.send(EVENT)
    used = time.process_time() - started
    for connection in connections:
        connection.close()
    os.waitpid(reader, 0)
    return round(used * 1e6 / steps / streams, 2)


def _read_all(clients: list[socket.socket]) -> None:
    by_fd = {client.fileno(): client for client in clients}
    epoll = select.epoll()
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    while by_fd:
        for fd, _ in epoll.poll():
            if not by_fd[fd].recv(65536):
                by_fd.pop(fd).close()
