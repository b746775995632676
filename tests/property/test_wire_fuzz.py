"""Bytes that are no message of ours are told from one by every decoder, whatever they are, and never by another exception."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from millstream.ipc.frames import NotAMessage, decode
from millstream.messages import (
    AbortReq,
    AdmissionOutput,
    BatchStrOutput,
    ChildError,
    FromSupervisor,
    ProcessState,
    Progress,
    ProgressOutput,
    Ready,
    Rejection,
    ServerState,
    Shutdown,
    StatsReq,
    Stop,
    TextRow,
    ToDetokenizer,
    ToEntry,
    ToScheduler,
    ToSupervisor,
)
from tests.unit.messages.test_wire import ENGINE, REQUEST, STATS, TOKEN_ROWS, USAGE

UNIONS: dict[str, Any] = {
    "to scheduler": ToScheduler,
    "to detokenizer": ToDetokenizer,
    "to entry": ToEntry,
    "to supervisor": ToSupervisor,
    "from supervisor": FromSupervisor,
}
MESSAGES: list[Any] = [
    REQUEST,
    AbortReq("r"),
    StatsReq(1),
    TOKEN_ROWS,
    STATS,
    BatchStrOutput([TextRow(rid="a", slot=3, text="é😀", token_ids=[1, 70000], usage=USAGE, finish=Stop("END"), digest=5)]),
    AdmissionOutput(accepted=[3], rejected=[Rejection("b", 4, "full", 429, "overloaded_error", retry_after_s=1)]),
    ProgressOutput([Progress("a", place=3)]),
    Ready(process="scheduler", engine=ENGINE),
    ChildError(process="entry", message="no port"),
    ServerState(processes={"entry": ProcessState(pid=7, state="FAILED")}, engine=ENGINE),
    Shutdown(drain_s=1.0),
]
DECODERS = {name: msgspec.msgpack.Decoder(union) for name, union in UNIONS.items()}
TAGS = sorted({cls.__struct_config__.tag for union in UNIONS.values() for cls in union.__args__})
FIELDS = sorted({field for union in UNIONS.values() for cls in union.__args__ for field in cls.__struct_fields__})

every_decoder = pytest.mark.parametrize("name", DECODERS)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(TAGS)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["type", *FIELDS]) | st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=25,
)


def assert_is_a_message_or_told_apart(name: str, data: bytes) -> None:
    with contextlib.suppress(NotAMessage):
        assert isinstance(decode(DECODERS[name], data), UNIONS[name])


@every_decoder
@given(data=st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    assert_is_a_message_or_told_apart(name, data)


@every_decoder
@settings(max_examples=40)
@given(data=st.data())
def test_any_values_under_our_names(name: str, data: st.DataObject) -> None:
    tag = {"type": data.draw(st.sampled_from(TAGS))}
    fields = data.draw(st.dictionaries(st.sampled_from(FIELDS), values, max_size=8))
    assert_is_a_message_or_told_apart(name, msgspec.msgpack.encode(tag | fields))
    assert_is_a_message_or_told_apart(name, msgspec.msgpack.encode([tag["type"], *fields.values()]))
    assert_is_a_message_or_told_apart(name, msgspec.msgpack.encode(data.draw(values)))


@every_decoder
@given(data=st.data())
def test_a_message_of_ours_that_was_damaged(name: str, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([each for each in MESSAGES if isinstance(each, UNIONS[name])]))
    whole = bytearray(msgspec.msgpack.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                whole[place] ^= data.draw(st.integers(1, 255))
            case "cut":
                del whole[max(1, place) :]
            case _:
                whole[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    assert_is_a_message_or_told_apart(name, bytes(whole))


@every_decoder
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x82\xa4type\xa5ready\xa1x" + b"\x91"])
def test_endless_nesting(name: str, opening: bytes) -> None:
    with pytest.raises(NotAMessage):
        decode(DECODERS[name], opening[:-1] + opening[-1:] * 1_000_000)
    for tag in TAGS:
        head = b"\x82" + msgspec.msgpack.encode("type") + msgspec.msgpack.encode(tag) + msgspec.msgpack.encode("unknown")
        with pytest.raises(NotAMessage):
            decode(DECODERS[name], head + b"\x91" * 1_000_000)


@every_decoder
def test_an_undeclared_type_is_none_of_ours(name: str) -> None:
    for value in (
        {"type": "os.system"},
        {"type": None},
        {},
        [],
        5,
        "request",
        {"__class__": "x"},
        Ext(1, b"x"),
    ):
        with pytest.raises(NotAMessage):
            decode(DECODERS[name], msgspec.msgpack.encode(value))
