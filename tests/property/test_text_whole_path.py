"""The whole text path, scheduler's end rule to detokenizer, over tokenizers in use: what is sent is the definition's text.

Ids are random, or of text in thirty languages and of emoji sequences, some lost or broken; they come in any steps, with any
stops and any end. The definition: decode all ids that count at once, and cut at the first place where a stop completes.
"""

from __future__ import annotations

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
    TokenRow,
    Usage,
)
from millstream.scheduler.finish import EndRule
from millstream.text.byte_table import byte_of
from millstream.text.rolling import digest_of
from millstream.text.tokenizer import Tokenizer, scripted_text
from tests.property.test_text_decoding import embedded, known
from tests.support.made_tokenizers import library_decode, unigram_tokenizer, wordpiece_tokenizer
from tests.support.published_tokenizers import published

Make = Callable[[], Tokenizer]
KINDS: dict[str, Make] = {
    "embedded": embedded,
    "qwen3": partial(published, "qwen3"),  # byte-level, 150,000 ids
    "llama2": partial(published, "llama2"),  # SentencePiece BPE with byte fallback
}
WINDOWED: dict[str, Make] = {"wordpiece": wordpiece_tokenizer, "unigram": unigram_tokenizer}
FAMILY = "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇫🇷1️⃣🧑🏿‍🚀🐦‍🔥"
REGEXES = [r"\d\d", r"\n\s*\w", "[a-z]+ [a-z]", r"\w{3}\s\w", "[🙂👩👍].?[a-z]", r"(?i:THE)[ ,.]"]
_made: dict[str, Tokenizer] = {}


def tokenizer_of(name: str) -> Tokenizer:
    """One of the tokenizers, made once."""
    if name not in _made:
        _made[name] = {**KINDS, **WINDOWED}[name]()
    return _made[name]


def draw_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Random ids; those of real text; of emoji; and of either with ids lost, doubled or replaced."""
    size = tokenizer.vocab_size
    kind = data.draw(st.sampled_from(["random", "bytes", "text", "text", "emoji", "broken"]))
    if kind == "random":
        return data.draw(st.lists(st.integers(-1, size), min_size=1, max_size=40))
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
        self.rows: list[TextRow] = []

    def send(self, message: Any) -> None:
        self.rows += message.rows


def serve(
    tokenizer: Tokenizer, sampling: SamplingParams, steps: Sequence[list[int]], eos: int, max_new: int
) -> tuple[list[TextRow], list[int], FinishReason]:
    """Run one request through the scheduler's rule and the detokenizer, as their processes do."""
    rule = EndRule(sampling=sampling, max_new_tokens=max_new, eos_token_ids=frozenset({eos}), tokenizer=tokenizer)
    outbox = Outbox()
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: outbox)
    opened = [
        DecodeOptions("r", skip_special_tokens=sampling.skip_special_tokens, no_stop_trim=sampling.no_stop_trim),
    ]
    made: list[int] = []
    for step in steps:
        verdict = rule.settle(step, len(made))
        ids = step[: verdict.num_kept]
        made += ids
        timing = None if verdict.finish is None else Timing()
        row = TokenRow("r", ids, Usage(1, len(made)), verdict.held_back, verdict.finish, timing)
        manager.handle(BatchTokenIDOutput([row], opened))
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
    sampling = SamplingParams(**options, skip_special_tokens=skip, no_stop_trim=no_stop_trim)
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
@settings(deadline=None, max_examples=1500)
@given(data=st.data())
def test_any_steps_stops_and_ends_give_the_text_of_the_definition_at_length(name: str, data: st.DataObject) -> None:
    check(data, tokenizer_of(name))


@pytest.mark.parametrize("name", [*KINDS, *WINDOWED])
@settings(deadline=None, max_examples=60)
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_the_definition_is_the_librarys_where_it_has_one(name: str, data: st.DataObject, skip_special_tokens: bool) -> None:
    tokenizer = tokenizer_of(name)
    ids = known(tokenizer, draw_ids(data, tokenizer))
    if name == "llama2":  # runs of byte tokens have a rule of our own, and shown control tokens eat a space there
        skip_special_tokens = True
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
        if name == "embedded":
            assert joined == text


@pytest.mark.parametrize("name", ["qwen3", "llama2"])
@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=60), add_special_tokens=st.booleans())
def test_the_fast_encoder_gives_the_librarys_ids(name: str, text: str, add_special_tokens: bool) -> None:
    tokenizer = tokenizer_of(name)
    if tokenizer.encoder_name == "tokenizers":
        tokenizer.load_fast_encoder()
    assert tokenizer.encode(text, add_special_tokens=add_special_tokens) == tokenizer._library_encode(text, add_special_tokens)
