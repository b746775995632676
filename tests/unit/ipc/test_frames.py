"""Frames come out as they went in, however the bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.ipc.frames import FrameReader, frame


@given(st.lists(st.binary(max_size=40)), st.data())
def test_any_cut_gives_the_same_frames(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, messages))
    reader = FrameReader(max_bytes=40)
    arrived = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        arrived += reader.feed(stream[:size])
        stream = stream[size:]
    assert arrived == messages


def test_a_frame_that_is_too_long_to_be_ours_is_refused() -> None:
    reader = FrameReader(max_bytes=4)
    assert reader.feed(frame(b"good")) == [b"good"]
    with pytest.raises(ValueError, match="5 bytes"):
        reader.feed(frame(b"wrong")[:4])
