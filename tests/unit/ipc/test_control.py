"""The link between supervisor and child: frames of any cut, and the news of a death."""

from __future__ import annotations

import select
import socket
import struct
import threading

import msgspec
import pytest

from millstream.ipc.control import MAX_FRAME_BYTES, ControlLink, PeerGone
from millstream.ipc.frames import frame
from millstream.ipc.pulse import Pulse
from millstream.messages import ChildError, FromSupervisor, Heartbeat, ProcessState, Ready, ServerState, Shutdown, ToSupervisor


def test_both_directions_carry_typed_messages() -> None:
    left, right = socket.socketpair()
    supervisor, child = ControlLink(left, ToSupervisor), ControlLink(right, FromSupervisor)
    child.send(Ready(process="entry"))
    state = ServerState(processes={"entry-0": ProcessState(pid=1, state="READY")})
    supervisor.send(state)
    supervisor.send(Shutdown(drain_s=2.0))
    assert supervisor.receive() == [Ready(process="entry")]
    assert child.receive() == [state, Shutdown(drain_s=2.0)]
    assert child.receive() == []
    supervisor.close()
    child.close()


def test_a_message_cut_anywhere_arrives_whole() -> None:
    left, right = socket.socketpair()
    link = ControlLink(right, FromSupervisor)
    body = msgspec.msgpack.encode(Shutdown(drain_s=1.0))
    for byte in struct.pack("!I", len(body)) + body[:-1]:
        left.sendall(bytes([byte]))
        assert link.receive() == []
    left.sendall(body[-1:])
    assert link.receive() == [Shutdown(drain_s=1.0)]
    left.close()
    link.close()


def test_what_the_peer_said_before_it_died_is_read_before_its_death() -> None:
    left, right = socket.socketpair()
    supervisor, child = ControlLink(left, ToSupervisor), ControlLink(right, FromSupervisor)
    child.send(Ready(process="scheduler"))
    child.close()
    assert supervisor.receive() == [Ready(process="scheduler")]
    with pytest.raises(PeerGone):
        supervisor.receive()
    supervisor.send(Shutdown())  # to the dead: no error, `receive` is where it shows
    supervisor.close()


def test_a_length_that_is_no_frame_of_ours_ends_the_link() -> None:
    left, right = socket.socketpair()
    link = ControlLink(right, FromSupervisor)
    left.sendall(struct.pack("!I", MAX_FRAME_BYTES + 1))
    with pytest.raises(PeerGone):
        link.receive()
    left.close()
    link.close()


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\xa4type\xa7unknown", b"\x91" * 5000], ids=["no value", "unknown tag", "deep"])
def test_a_frame_that_is_no_message_of_ours_ends_the_link(data: bytes) -> None:
    left, right = socket.socketpair()
    link = ControlLink(right, FromSupervisor)
    left.sendall(frame(data))
    with pytest.raises(PeerGone):
        link.receive()
    left.close()
    link.close()


def test_what_need_not_arrive_is_dropped_where_the_peer_does_not_read_and_never_cut() -> None:
    left, right = socket.socketpair()
    supervisor, child = ControlLink(left, ToSupervisor), ControlLink(right, FromSupervisor)
    count = 0
    poller = select.poll()
    poller.register(right, select.POLLOUT)
    while poller.poll(0):
        child.send(Heartbeat(count, True), must_arrive=False)
        count += 1
    for _ in range(1000):
        child.send(Heartbeat(-1, False), must_arrive=False)
    received = []
    while len(received) < count - 1:
        received += supervisor.receive()
    assert received[: count - 1] == [Heartbeat(number, True) for number in range(count - 1)]
    child.send(Ready(process="entry"))
    while received[-1:] != [Ready(process="entry")]:
        received += supervisor.receive()
    supervisor.close()
    child.close()


def test_messages_of_several_threads_do_not_mix() -> None:
    left, right = socket.socketpair()
    supervisor, child = ControlLink(left, ToSupervisor), ControlLink(right, FromSupervisor)
    messages = [ChildError(process="entry", message=str(number) * 50_000) for number in range(8)]
    threads = [threading.Thread(target=child.send, args=(message,)) for message in messages]
    for thread in threads:
        thread.start()
    received: list[object] = []
    while len(received) < len(messages):
        select.select([left], [], [], 5)
        received += supervisor.receive()
    for thread in threads:
        thread.join()
    assert sorted(map(repr, received)) == sorted(map(repr, messages))
    supervisor.close()
    child.close()


def test_a_pulse_beats_from_a_thread_of_its_own_and_says_how_the_loop_gets_on() -> None:
    left, right = socket.socketpair()
    supervisor, child = ControlLink(left, ToSupervisor), ControlLink(right, FromSupervisor)
    pulse = Pulse(child, beat_s=0.001)
    pulse.start()

    def next_beat() -> object:
        supervisor.receive()
        select.select([left], [], [], 5)
        return supervisor.receive()[-1]

    assert next_beat() == Heartbeat(0, True)
    pulse.idle()
    assert next_beat() == Heartbeat(1, False)
    pulse.work()
    pulse.progress += 2
    assert next_beat() == Heartbeat(3, True)
    pulse.stop()
    supervisor.close()
    child.close()
