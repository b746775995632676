"""Channels: order, types, and frames that are not ours."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from millstream.ipc.address import entry_name, entry_number, socket_address, socket_path
from millstream.ipc.channel import PullChannel, PushChannel, SenderGone
from millstream.ipc.entries import EntryChannels
from millstream.ipc.frames import frame as framed
from millstream.messages import AbortReq, StatsReq, ToScheduler
from tests.support.asgi import until


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
        async with asyncio.timeout(60):
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


def test_the_end_of_a_sender_comes_in_order_after_all_it_sent(address: str) -> None:
    inbox = PullChannel(address, ToScheduler)
    nameless, named = PushChannel(address), PushChannel(address, "entry-7")
    sent = [StatsReq(id=number) for number in range(100)]
    for message in sent:
        named.send(message)
    named.close()
    nameless.send(AbortReq("x"))
    nameless.close()  # whose end is no news
    messages = receive_some(inbox, len(sent) + 2)
    assert [message for message in messages if message != AbortReq("x")] == [*sent, SenderGone("entry-7")]
    assert inbox.receive(0.1) == ([], False)
    inbox.close()


def test_a_successor_is_heard_only_after_its_predecessor_has_had_its_say(address: str) -> None:
    inbox = PullChannel(address, ToScheduler)
    first, second = PushChannel(address, "scheduler"), PushChannel(address, "scheduler")
    first.send(StatsReq(id=0))
    assert receive_some(inbox, 1) == [StatsReq(id=0)]
    said = [AbortReq(f"{number}-" + "x" * 10_000) for number in range(15)]  # more than one read takes
    for message in said:
        first.send(message)
    first.close()
    second.send(StatsReq(id=1))
    messages = receive_some(inbox, len(said) + 2)
    assert messages == [*said, SenderGone("scheduler"), StatsReq(id=1)]
    second.close()
    inbox.close()


def test_a_receiver_that_was_replaced_gets_what_is_sent_next_over_a_new_connection(address: str) -> None:
    first, outbox = PullChannel(address, ToScheduler), PushChannel(address)
    assert outbox.send(StatsReq(id=1)) == 1
    assert outbox.connect() == 1
    assert receive_some(first, 1) == [StatsReq(id=1)]
    first.close()
    assert (outbox.send(StatsReq(id=2)), outbox.connect()) == (0, 0)  # nobody is there
    second = PullChannel(address, ToScheduler)
    assert outbox.send(StatsReq(id=3)) == 2
    assert receive_some(second, 1) == [StatsReq(id=3)]
    second.close()
    third = PullChannel(address, ToScheduler)
    assert outbox.connect() == 3  # without anything sent since the second died
    assert outbox.send(StatsReq(id=4)) == 3
    assert receive_some(third, 1) == [StatsReq(id=4)]
    outbox.close()
    third.close()


def test_a_backlog_for_the_dead_does_not_reach_the_successor_and_does_not_hold_up_what_does(address: str) -> None:
    first, outbox = PullChannel(address, ToScheduler), PushChannel(address)
    for number in range(200):
        assert outbox.send(AbortReq(f"{number}-" + "x" * 20_000)) == 1
    first.close()
    second = PullChannel(address, ToScheduler)
    assert outbox.connect() == 2
    assert outbox.send(StatsReq(id=1)) == 2
    assert receive_some(second, 1) == [StatsReq(id=1)]
    assert second.receive(0.1) == ([], False)
    outbox.close()
    second.close()


def test_everything_sent_so_far_can_be_had_at_once_even_from_those_not_accepted_yet(address: str) -> None:
    async def scenario() -> list[Any]:
        inbox, known, unknown = PullChannel(address, ToScheduler), PushChannel(address, "a"), PushChannel(address, "b")
        arrived: list[Any] = []
        inbox.pump(asyncio.get_running_loop(), arrived.append)
        known.send(StatsReq(id=0))
        inbox.deliver_all()
        for number in range(1, 100):
            known.send(StatsReq(id=number))
            unknown.send(AbortReq(f"{number}"))
        unknown.close()
        inbox.deliver_all()
        at_once = list(arrived)
        await asyncio.sleep(0)  # what the loop has seen of it before is no trouble
        known.send(StatsReq(id=500))
        await until(lambda: len(arrived) > len(at_once))
        inbox.close()
        known.close()
        assert arrived[len(at_once) :] == [StatsReq(id=500)]
        return at_once

    messages = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [message for message in messages if isinstance(message, StatsReq)] == [StatsReq(id=n) for n in range(100)]
    assert [message for message in messages if not isinstance(message, StatsReq)] == [
        *(AbortReq(f"{number}") for number in range(1, 100)),
        SenderGone("b"),
    ]


def test_frames_that_are_no_messages_do_not_fill_the_log(address: str, caplog: pytest.LogCaptureFixture) -> None:
    inbox = PullChannel(address, ToScheduler)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(address)
    raw.sendall(framed(b"\xc1") * 1000 + framed(b"\x82\xa4type\xa9abort_req\xa3rid\xa1x"))
    assert receive_some(inbox, 1) == [AbortReq(rid="x")]
    assert inbox.bad_frames == 1000
    assert len(caplog.records) == 10
    raw.close()
    inbox.close()


def test_each_entry_worker_has_a_channel_of_its_own_until_it_is_forgotten(tmp_path: Path) -> None:
    inboxes = [PullChannel(socket_address(tmp_path, entry_name(number)), ToScheduler) for number in (0, 12)]
    channels = EntryChannels(tmp_path, "scheduler")
    channels(0).send(StatsReq(id=0))
    channels(12).send(StatsReq(id=12))
    assert channels(12) is channels(12)
    assert [receive_some(inbox, 1) for inbox in inboxes] == [[StatsReq(id=0)], [StatsReq(id=12)]]
    channels.forget(12)
    channels.forget(12)
    assert receive_some(inboxes[1], 1) == [SenderGone("scheduler")]
    channels.close()
    assert receive_some(inboxes[0], 1) == [SenderGone("scheduler")]
    for inbox in inboxes:
        inbox.close()


def test_the_channels_to_workers_that_are_gone_are_closed_when_another_comes(tmp_path: Path) -> None:
    inboxes = [PullChannel(socket_address(tmp_path, entry_name(number)), ToScheduler) for number in range(3)]
    channels = EntryChannels(tmp_path, "detokenizer")
    for number in range(2):
        channels(number).send(StatsReq(id=number))
        assert receive_some(inboxes[number], 1) == [StatsReq(id=number)]
    inboxes[0].close()
    num_open = len(os.listdir("/proc/self/fd"))
    channels(2).send(StatsReq(id=2))
    assert receive_some(inboxes[2], 1) == [StatsReq(id=2)]
    assert len(os.listdir("/proc/self/fd")) == num_open + 1  # ours and the receiver's came, one of a dead worker went
    channels(1).send(StatsReq(id=4))
    assert receive_some(inboxes[1], 1) == [StatsReq(id=4)]
    channels.close()
    for inbox in inboxes[1:]:
        inbox.close()


@pytest.mark.parametrize(("name", "number"), [("entry-0", 0), ("entry-12", 12), ("scheduler", None), ("detokenizer", None)])
def test_the_number_of_an_entry_worker_is_in_its_name(name: str, number: int | None) -> None:
    assert entry_number(name) == number
