"""Channels: order, types, and frames that are not ours."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from millstream.ipc.address import socket_address, socket_path
from millstream.ipc.channel import PullChannel, PushChannel
from millstream.ipc.frames import frame as framed
from millstream.messages import AbortReq, StatsReq, ToScheduler


@pytest.fixture
def address(tmp_path: Path) -> str:
    return socket_address(tmp_path, "scheduler")


def receive_some(channel: PullChannel, count: int) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + 5
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {messages} arrived"
        messages += channel.receive(5)[0]
    return messages


def test_messages_arrive_typed_and_in_order(address: str) -> None:
    inbox, outbox = PullChannel(address, ToScheduler), PushChannel(address)
    sent = [AbortReq(rid=f"r{i}") if i % 2 else StatsReq(id=i) for i in range(1000)]
    for message in sent:
        outbox.send(message)
    assert receive_some(inbox, len(sent)) == sent
    outbox.close()
    inbox.close()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x80\x04.", id="pickle"),
        pytest.param(b"\xc1", id="never-used-byte"),
        pytest.param(b"\x82\xa4type\xa9abort_req\xa3rid\x01", id="wrong-field-type"),
        pytest.param(b"\x81\xa4type\xa7unknown", id="unknown-tag"),
        pytest.param(b"\x82\xa4type\xa9abort_req\xa3rid\xa1\xff", id="not-utf8"),
        pytest.param(b"\x91" * 5000, id="deep"),
        pytest.param(b"\x82\xa4type\xa9abort_req\xa1x" + b"\x91" * 5000, id="deep-in-an-unknown-field"),
    ],
)
def test_a_frame_that_is_not_a_message_is_dropped_and_the_next_one_arrives(address: str, frame: bytes) -> None:
    inbox = PullChannel(address, ToScheduler)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(address)
    raw.sendall(framed(frame) + framed(b"\x82\xa4type\xa9abort_req\xa3rid\xa1x"))
    assert receive_some(inbox, 1) == [AbortReq(rid="x")]
    assert inbox.bad_frames == 1
    raw.close()
    inbox.close()


def test_the_event_loop_delivers_messages_sent_before_and_after_it_started(address: str) -> None:
    async def scenario() -> list[Any]:
        inbox, outbox = PullChannel(address, ToScheduler), PushChannel(address)
        outbox.send(StatsReq(id=0))
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        inbox.pump(asyncio.get_running_loop(), arrived.put_nowait)
        async with asyncio.timeout(5):
            first = await arrived.get()
            outbox.send(StatsReq(id=1))
            outbox.send(StatsReq(id=2))
            rest = [await arrived.get(), await arrived.get()]
        inbox.close()
        outbox.close()
        return [first, *rest]

    assert asyncio.run(scenario()) == [StatsReq(id=0), StatsReq(id=1), StatsReq(id=2)]


def test_closing_the_inbox_removes_its_socket_file(tmp_path: Path, address: str) -> None:
    inbox = PullChannel(address, ToScheduler)
    assert socket_path(tmp_path, "scheduler").exists()
    inbox.close()
    assert not socket_path(tmp_path, "scheduler").exists()


def test_a_sender_is_never_blocked_by_a_receiver_that_does_not_read(address: str) -> None:
    inbox, outbox = PullChannel(address, ToScheduler), PushChannel(address)
    sent = [AbortReq(rid=f"{i}-" + "x" * 20_000) for i in range(200)]  # 4 MB: more than the kernel keeps
    for message in sent:
        outbox.send(message)
    assert receive_some(inbox, len(sent)) == sent
    outbox.send(StatsReq(id=1))  # the backlog is gone: the short way again
    assert receive_some(inbox, 1) == [StatsReq(id=1)]
    outbox.close()
    inbox.close()


def test_what_is_sent_to_nobody_is_lost_and_harms_nobody(address: str) -> None:
    outbox = PushChannel(address)
    outbox.send(StatsReq(id=1))
    inbox = PullChannel(address, ToScheduler)
    outbox.send(StatsReq(id=2))
    assert receive_some(inbox, 1) == [StatsReq(id=2)]
    inbox.close()
    outbox.send(StatsReq(id=3))
    outbox.close()


def test_a_watched_descriptor_ends_the_wait(address: str) -> None:
    inbox = PullChannel(address, ToScheduler)
    ours, theirs = socket.socketpair()
    inbox.watch(ours.fileno())
    assert inbox.receive() == ([], False)
    theirs.send(b"x")
    assert inbox.receive(5) == ([], True)
    inbox.close()
    ours.close()
    theirs.close()


def test_a_stranger_that_sends_no_frames_is_cut_off(address: str) -> None:
    inbox, outbox = PullChannel(address, ToScheduler), PushChannel(address)
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(address)
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    outbox.send(StatsReq(id=1))
    assert receive_some(inbox, 1) == [StatsReq(id=1)]
    inbox.receive(1)
    assert stranger.recv(1) == b""
    stranger.close()
    outbox.close()
    inbox.close()
