from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from millstream.text.digest import digest_of


@given(pieces=st.lists(st.text(max_size=3), max_size=50))
def test_every_way_to_cut_a_text_has_its_digest(pieces: list[str]) -> None:
    assert reduce(lambda before, piece: digest_of(piece, before), pieces, 0) == digest_of("".join(pieces))


def test_other_texts_have_other_digests() -> None:
    texts = ["", "a", "b", "ab", "ba", "a\u0301", "\u00e1", "\ufffd"]
    assert len({digest_of(text) for text in texts}) == len(texts)
