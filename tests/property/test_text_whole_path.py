"""The whole text path, scheduler's end rule to detokenizer, over tokenizers in use: what is sent is the definition's text.

Ids are random, or of text in thirty languages and of emoji sequences, some lost or broken; they come in any steps, with any
stops and any end. The definition: decode all ids that count at once, and cut at the first place where a stop completes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import (
    BatchTokenIDOutput,
    DecodeOptions,
    FinishReason,
    Length,
    SamplingParams,
    Stop,
    TextRow,
    Timing,
    TokenColumns,
    TokenRow,
    Usage,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.scheduler.finish import EndRule
from millstream.text.byte_table import byte_of
from millstream.text.digest import digest_of
from millstream.text.tokenizer import Tokenizer, scripted_text
from tests.property.test_text_decoding import embedded, known
from tests.support.made_tokenizers import library_decode, unigram_tokenizer, wordpiece_tokenizer
from tests.support.published_tokenizers import PUBLISHED_NAMES, TEKKEN_FILE, published, published_directory
from tests.support.rows import text_rows
from tests.support.tekken import tekken_pieces

Make = Callable[[], Tokenizer]
PUBLISHED: dict[str, Make] = {name: partial(published, name) for name in PUBLISHED_NAMES}
KINDS: dict[str, Make] = {"embedded": embedded, **PUBLISHED}
BYTE_FALLBACK = {"llama2", "gemma3"}
KEEPS_TEXT = {"embedded", "deepseek_v3", "gptoss", "gemma3", "llama3_1", "tekken"}  # the others normalise it
WINDOWED: dict[str, Make] = {"wordpiece": wordpiece_tokenizer, "unigram": unigram_tokenizer}
FAMILY = "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇫🇷1️⃣🧑🏿‍🚀🐦‍🔥"
REGEXES = [r"\d\d", r"\n\s*\w", "[a-z]+ [a-z]", r"\w{3}\s\w", "[🙂👩👍].?[a-z]", r"(?i:THE)[ ,.]"]
_made: dict[str, Tokenizer] = {}


def tokenizer_of(name: str) -> Tokenizer:
    """One of the tokenizers, made once."""
    if name not in _made:
        _made[name] = {**KINDS, **WINDOWED}[name]()
    return _made[name]


@functools.cache
def odd_ids(tokenizer: Tokenizer) -> list[int]:
    """Every added token, and ids that stand for less than whole characters."""
    table = tokenizer._table.shown if tokenizer._table is not None else {}
    parts = [token_id for token_id, piece in table.items() if "\ufffd" in piece.decode(errors="replace")]
    return [*sorted(tokenizer._encoder.get_added_tokens_decoder()), *parts]


def draw_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Random ids; odd ones; those of real text; of emoji; and of either with ids lost, doubled or replaced."""
    size = tokenizer.vocab_size
    kind = data.draw(st.sampled_from(["random", "odd", "bytes", "text", "text", "emoji", "broken"]))
    if kind in ("random", "odd"):
        ids = st.integers(-1, size) if kind == "random" else st.sampled_from(odd_ids(tokenizer))
        return data.draw(st.lists(ids, min_size=1, max_size=40))
    if kind == "bytes":
        text = data.draw(st.text(min_size=1, max_size=12))
    else:
        corpus = FAMILY if kind == "emoji" else scripted_text()
        start = data.draw(st.integers(0, max(0, len(corpus) - 40)))
        text = corpus[start : start + 40]
    ids = tokenizer.encode(text, add_special_tokens=False) or [0]
    if kind in ("bytes", "broken"):
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(ids) - 1))
            ids[at : at + 1] = data.draw(st.sampled_from([[], [ids[at]] * 2, [data.draw(st.integers(0, size - 1)), ids[at]]]))
            ids = ids or [0]
    return ids


def draw_stops(data: st.DataObject, text: str) -> dict[str, Any]:
    """Stops that are in the text, stops that only begin in it, and regexes. None can match a replacement character."""
    stops = []
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, max(0, len(text) - 1)))
        stop = text[start : start + data.draw(st.integers(1, 6))] + data.draw(st.sampled_from(["", "", "Q"]))
        if stop and "\ufffd" not in stop:
            stops.append(stop)
    return {"stop": tuple(stops), "stop_regex": tuple(data.draw(st.lists(st.sampled_from(REGEXES), max_size=2)))}


def first_stop(text: str, options: dict[str, Any]) -> tuple[int, int] | None:
    """Where the first stop completes, by looking at the text after every character."""
    patterns = [re.compile(re.escape(stop)) for stop in options["stop"]] + [re.compile(each) for each in options["stop_regex"]]
    for end in range(1, len(text) + 1):
        starts = [start for start in range(end) for pattern in patterns if pattern.fullmatch(text, start, end)]
        if starts:
            return min(starts), end
    return None


class Outbox:
    """A sender that keeps the rows."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    @property
    def rows(self) -> list[TextRow]:
        return text_rows(self.sent)

    def send(self, message: Any) -> None:
        self.sent.append(message)


def serve(
    tokenizer: Tokenizer, sampling: SamplingParams, steps: Sequence[list[int]], eos: int, max_new: int
) -> tuple[list[TextRow], list[int], FinishReason]:
    """Run one request through the scheduler's rule and the detokenizer, as their processes do."""
    rule = EndRule(sampling=sampling, max_new_tokens=max_new, eos_token_ids=frozenset({eos}), tokenizer=tokenizer)
    outbox = Outbox()
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: outbox)
    opened = [
        DecodeOptions(
            "r",
            3,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            no_stop_trim=sampling.no_stop_trim,
        )
    ]
    made: list[int] = []
    for step in steps:
        verdict = rule.settle(step, len(made))
        ids = step[: verdict.num_kept]
        made += ids
        timing = None if verdict.finish is None else Timing()
        if opened or verdict.finish is not None or verdict.held_back or not ids:
            row = TokenRow("r", ids, Usage(1, len(made)), verdict.held_back, verdict.finish, timing)
            manager.handle(BatchTokenIDOutput([row], opened))
        else:
            manager.handle(BatchTokenIDOutput([], [], [TokenColumns(pack_slots([3]), pack_ids(ids), len(ids))]))
        opened = []
        if verdict.finish is not None:
            assert len(manager) == 0
            return outbox.rows, made, verdict.finish
    raise AssertionError("the request has not ended")


def check(data: st.DataObject, tokenizer: Tokenizer) -> None:
    ids = draw_ids(data, tokenizer)
    eos = data.draw(st.sampled_from([ids[-1], ids[len(ids) // 2], -7]))
    counted = ids[: ids.index(eos)] if eos in ids else ids
    skip, no_stop_trim = data.draw(st.booleans()), data.draw(st.booleans())
    ends_by_id = eos in ids
    if ends_by_id and no_stop_trim:
        counted = [*counted, eos]
    text = tokenizer.decode(counted, skip_special_tokens=skip)
    options = draw_stops(data, text)
    sampling = SamplingParams(
        **options,
        skip_special_tokens=skip,
        spaces_between_special_tokens=data.draw(st.booleans()),
        no_stop_trim=no_stop_trim,
    )
    steps, rest = [], ids
    while rest:
        size = data.draw(st.sampled_from([1, 1, 2, 5]))
        steps.append(rest[:size])
        rest = rest[size:]
    rows, made, finish = serve(tokenizer, sampling, steps, eos, len(ids))
    found = first_stop(text, options)
    if found is not None and ends_by_id and no_stop_trim and not isinstance(getattr(finish, "matched", None), str):
        found = None  # it completes only in the text of the stop token itself, which is not searched
    sent = "".join(row.text for row in rows)
    if found is None:
        assert sent == text
        assert finish == (Stop(eos) if ends_by_id else Length(len(ids)))
        assert made == (ids[: ids.index(eos) + 1] if ends_by_id else ids)
    else:
        assert finish == Stop(text[found[0] : found[1]])
        assert sent == text[: found[1] if no_stop_trim else found[0]]
    assert rows[-1].digest == digest_of(sent)
    position = 0
    for row in rows[:-1]:  # nothing of the stop, and nothing that could be one, has left early
        position += len(row.text)
        assert found is None or position <= found[0]


@pytest.mark.parametrize("name", [*KINDS, *WINDOWED])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_steps_stops_and_ends_give_the_text_of_the_definition(name: str, data: st.DataObject) -> None:
    check(data, tokenizer_of(name))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*KINDS, *WINDOWED])
@settings(deadline=None, max_examples=800)
@given(data=st.data())
def test_any_steps_stops_and_ends_give_the_text_of_the_definition_at_length(name: str, data: st.DataObject) -> None:
    check(data, tokenizer_of(name))


@pytest.mark.parametrize("name", [*KINDS, *WINDOWED])
@settings(deadline=None, max_examples=60)
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_the_definition_is_the_librarys_where_it_has_one(name: str, data: st.DataObject, skip_special_tokens: bool) -> None:
    tokenizer = tokenizer_of(name)
    ids = known(tokenizer, draw_ids(data, tokenizer))
    if name == "llama2":  # shown control tokens eat a space there
        skip_special_tokens = True
    if name in BYTE_FALLBACK:  # runs of byte tokens have a rule of our own
        ids = [token_id for token_id in ids if byte_of(tokenizer._encoder.id_to_token(token_id) or "") is None]
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    assert text == library_decode(tokenizer, ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("name", KINDS)
def test_text_in_every_language_comes_back_in_whole_characters(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text in (*scripted_text().splitlines(keepends=True), FAMILY):
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoder = tokenizer.incremental()
        deltas = [*[decoder.push((token_id,)) for token_id in ids], decoder.flush()]
        assert not any("\ufffd" in delta for delta in deltas)
        joined = "".join(deltas)
        assert joined == tokenizer.decode(ids) == library_decode(tokenizer, ids)
        if name in KEEPS_TEXT:
            assert joined == text


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_tekken_ids_are_the_bytes_that_its_own_file_gives(data: st.DataObject) -> None:
    tokenizer = tokenizer_of("tekken")
    special, pieces = tekken_pieces_once()
    ids = draw_ids(data, tokenizer)
    first = len(special)
    raw = b"".join(pieces[token_id - first] for token_id in ids if first <= token_id < tokenizer.vocab_size)
    assert tokenizer.decode(ids) == raw.decode(errors="replace")


@functools.cache
def tekken_pieces_once() -> tuple[list[str], list[bytes]]:
    return tekken_pieces(published_directory("tekken") / TEKKEN_FILE)


@pytest.mark.parametrize("name", KINDS)
def test_tokenizers_in_use_are_decoded_by_their_table_of_bytes(name: str) -> None:
    assert tokenizer_of(name).decoder_name == "byte table"


@pytest.mark.parametrize("name", WINDOWED)
def test_tokenizers_that_look_at_neighbours_are_decoded_by_a_window(name: str) -> None:
    assert tokenizer_of(name).decoder_name == "window"


texts = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(scripted_text().split()),
        st.sampled_from(
            [" ", "  ", "\n\n", "\t", "'s", "'LL ", "1234", "e\u0301", "\u1100\u1161", "\u2581", "<0x0A>", "<s>", FAMILY]
        ),
        st.text("aA 1.\n'", max_size=30),
    ),
    max_size=12,
).map("".join)


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_proof_finds_the_fast_encoder_equal(name: str) -> None:
    assert with_fast_encoder(name).encoder_name == "fastokens"


@pytest.mark.parametrize("name", PUBLISHED)
@settings(deadline=None, max_examples=60)
@given(text=texts, add_special_tokens=st.booleans(), data=st.data())
def test_the_fast_encoder_gives_the_librarys_ids(name: str, text: str, add_special_tokens: bool, data: st.DataObject) -> None:
    tokenizer = with_fast_encoder(name)
    text += tokenizer.decode(draw_ids(data, tokenizer), skip_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=add_special_tokens) == tokenizer._library_encode(text, add_special_tokens)


@functools.cache
def with_fast_encoder(name: str) -> Tokenizer:
    tokenizer = tokenizer_of(name)
    tokenizer.load_fast_encoder()
    return tokenizer
