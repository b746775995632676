"""The link between supervisor and child: frames of any cut, and the news of a death."""

from __future__ import annotations

import socket
import struct

import msgspec
import pytest

from millstream.ipc.control import MAX_FRAME_BYTES, ControlLink, PeerGone
from millstream.ipc.frames import frame
from millstream.messages import FromSupervisor, ProcessState, Ready, ServerState, Shutdown, ToSupervisor


def test_both_directions_carry_typed_messages() -> None:
    left, right = socket.socketpair()
    supervisor, child = ControlLink(left, ToSupervisor), ControlLink(right, FromSupervisor)
    child.send(Ready(process="entry", url="http://127.0.0.1:1"))
    state = ServerState(processes={"entry": ProcessState(pid=1, state="READY")})
    supervisor.send(state)
    supervisor.send(Shutdown(drain_s=2.0))
    assert supervisor.receive() == [Ready(process="entry", url="http://127.0.0.1:1")]
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
