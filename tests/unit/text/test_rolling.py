from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.text.rolling import PIECES, TextDigest, digest_of


@given(pieces=st.lists(st.text(max_size=3), max_size=2 * PIECES + 5))
def test_every_way_to_cut_a_text_has_its_digest(pieces: list[str]) -> None:
    digest = TextDigest()
    for piece in pieces:
        digest.add(piece)
    assert digest.value == digest_of("".join(pieces))
    assert digest.value == digest.value


def test_other_texts_have_other_digests() -> None:
    texts = ["", "a", "b", "ab", "ba", "a\u0301", "\u00e1", "\ufffd"]
    assert len({digest_of(text) for text in texts}) == len(texts)
