"""Log probabilities over HTTP with a scripted executor: what people reported of servers like ours, and that streams agree."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.text.tokenizer import load_scripted_tokenizer
from tests.support.chat import ask, assert_serves, script
from tests.support.logprobs import content_bytes, joined_choices, plain_choices
from tests.support.sse import parse_events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMOJI = [{"bytes": "f09f"}, {"bytes": "98"}, {"bytes": "80"}]
TOKENIZER = load_scripted_tokenizer()


@pytest.fixture
def url(scripted_server: str) -> str:
    return scripted_server


def text_script(*pieces: Any, **more: Any) -> str:
    return "<script>" + json.dumps({"pieces": list(pieces), **more}) + "</script>"


def both(url: str, body: dict[str, Any], path: str = CHAT) -> dict[int, dict[str, Any]]:
    """The choices of a request, which are the same streamed."""
    plain = ask(url, body, path=path)
    assert plain.status == 200, plain.body
    response = httpx.post(url + path, json={**body, "stream": True}, timeout=60)
    choices = plain_choices(plain.body)
    assert joined_choices([event.data for event in parse_events(response.content) if event.data != "[DONE]"]) == choices
    return choices


def test_logprobs_without_top_logprobs_tells_the_chosen_tokens_alone(url: str) -> None:
    result = ask(url, {"messages": script("a", "b", "c"), "logprobs": True, "max_tokens": 2})
    assert result.usage is not None
    content = result.body["choices"][0]["logprobs"]["content"]
    assert len(content) == result.usage["completion_tokens"] == 2
    assert [entry["token"] for entry in content] == ["a", "b"]
    assert all(entry["top_logprobs"] == [] and entry["logprob"] <= 0 for entry in content)
    assert result.body["choices"][0]["logprobs"]["refusal"] is None


def test_the_bytes_of_a_part_of_a_character_are_its_own(url: str) -> None:
    (choice,) = both(url, {"messages": script(*EMOJI), "logprobs": True, "top_logprobs": 2}).values()
    content = choice["logprobs"]["content"]
    assert len(content) >= 3
    assert content_bytes(choice["logprobs"]).decode() == choice["text"] == "😀"
    for entry in content:
        assert entry["token"].startswith("bytes:\\x")
        assert all(other["token"] for other in entry["top_logprobs"])
        assert len(entry["top_logprobs"]) == 2


def test_entries_are_of_the_text_when_it_is_held_back(url: str) -> None:
    body = {"messages": script(*EMOJI, "z", "a"), "logprobs": True, "stop": ["zzz"]}
    (choice,) = both(url, body).values()
    assert choice["text"] == "😀za"
    assert content_bytes(choice["logprobs"]) == choice["text"].encode()


@pytest.mark.parametrize("no_stop_trim", [False, True])
def test_tokens_of_a_stop_string_are_listed_as_far_as_it_is_shown(url: str, no_stop_trim: bool) -> None:
    body = {"messages": script("one ", "ST", "OP", " more"), "logprobs": True, "stop": "STOP", "no_stop_trim": no_stop_trim}
    (choice,) = both(url, body).values()
    assert choice["text"] == ("one STOP" if no_stop_trim else "one ")
    assert content_bytes(choice["logprobs"]) == choice["text"].encode()


def test_an_end_of_turn_token_is_counted_and_not_listed(url: str) -> None:
    result = ask(url, {"messages": script("Hello", "<|im_end|>"), "logprobs": True})
    (choice,) = both(url, {"messages": script("Hello", "<|im_end|>"), "logprobs": True}).values()
    assert result.usage is not None
    assert result.usage["completion_tokens"] == len(choice["logprobs"]["content"]) + 1
    assert content_bytes(choice["logprobs"]) == b"Hello"


def test_a_control_token_that_is_not_shown_is_listed_without_bytes(url: str) -> None:
    body = {"messages": script("a", "<|im_start|>", "b"), "logprobs": True, "ignore_eos": True, "max_tokens": 3}
    (choice,) = both(url, body).values()
    assert [(e["token"], e["bytes"]) for e in choice["logprobs"]["content"]] == [
        ("a", [97]), ("<|im_start|>", None), ("b", [98]),
    ]  # fmt: skip
    (choice,) = both(url, {**body, "skip_special_tokens": False}).values()
    assert content_bytes(choice["logprobs"]).decode() == choice["text"] == "a<|im_start|>b"


def test_all_values_are_numbers_that_json_has(url: str) -> None:
    body = {"prompt": "a b c d", "echo": True, "logprobs": 2, "top_k": 1, "temperature": 1, "max_tokens": 1}
    (choice,) = both(url, body, COMPLETIONS).values()
    logprobs = choice["logprobs"]
    values = [*logprobs["token_logprobs"][1:], *(v for top in logprobs["top_logprobs"][1:] for v in top.values())]
    assert all(isinstance(value, float) and math.isfinite(value) for value in values)


@pytest.mark.parametrize("prompt", ["The sky is blue", TOKENIZER.encode("The sky is blue 😀")], ids=["text", "ids"])
def test_a_scoring_call_tells_every_token_of_its_prompt_and_makes_none(url: str, prompt: Any) -> None:
    text = prompt if isinstance(prompt, str) else TOKENIZER.decode(prompt)
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    (choice,) = both(url, body, COMPLETIONS).values()
    usage = ask(url, body, path=COMPLETIONS).usage
    logprobs = choice["logprobs"]
    assert usage is not None
    assert (choice["text"], choice["finish_reason"], usage["completion_tokens"]) == (text, "length", 0)
    assert {len(column) for column in logprobs.values()} == {usage["prompt_tokens"]}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    for token, value, top in zip(
        logprobs["tokens"][1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert top[token] == value
        assert len(top) in (1, 2)
    assert_serves(url)


def test_offsets_are_those_of_characters_in_the_text(url: str) -> None:
    prompt = "Été 😀 " + text_script("né ", *EMOJI, "!")
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 30}
    (choice,) = both(url, body, COMPLETIONS).values()
    logprobs, text = choice["logprobs"], choice["text"]
    assert text.startswith(prompt)
    assert text.endswith("né 😀!")
    assert logprobs["top_logprobs"] is None
    assert len(set(map(len, (logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"])))) == 1
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert text[offset : offset + len(token)] == token
        else:
            assert ord(text[offset]) > 0x7F or ord(text[offset + 1]) > 0x7F


def test_choices_and_prompts_each_have_their_own(url: str) -> None:
    prompts = [text_script("a", "b"), text_script("c😀", "d", "e")]
    body = {"prompt": prompts, "n": 2, "echo": True, "logprobs": 3, "max_tokens": 8}
    choices = both(url, body, COMPLETIONS)
    assert sorted(choices) == [0, 1, 2, 3]
    for index, choice in choices.items():
        assert choice["text"] == prompts[index // 2] + ("ab" if index < 2 else "c😀de")
        assert choice["logprobs"]["text_offset"] == sorted(choice["logprobs"]["text_offset"])
    assert choices[0] == choices[1]


def test_prompt_logprobs_are_told_of_each_position_on_both_routes(url: str) -> None:
    prompt = text_script("a")
    ids = TOKENIZER.encode(prompt)
    body = ask(url, {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 2}, path=COMPLETIONS).body
    told = body["choices"][0]["prompt_logprobs"]
    assert told[0] is None
    assert len(told) == len(ids)
    for token_id, entry in zip(ids[1:], told[1:], strict=True):
        assert 2 <= len(entry) <= 3
        assert entry[str(token_id)]["decoded_token"]
        assert sorted(e["rank"] for e in entry.values() if "rank" in e) == [1, 2]
    body = ask(url, {"messages": script("a"), "max_tokens": 1, "prompt_logprobs": 0}).body
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in body["prompt_logprobs"][1:])


def test_tokens_go_by_their_ids_where_the_client_wants_that(url: str) -> None:
    body = {"messages": script(*EMOJI), "logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    (choice,) = both(url, body).values()
    ids = ask(url, {**body, "return_token_ids": True}).body["choices"][0]["token_ids"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in ids]
    assert content_bytes(choice["logprobs"]).decode() == "😀"


PIECES = [["na", "ïve"], {"bytes": "f09f"}, {"bytes": "98"}, {"bytes": "80"}, "z", "é", {"bytes": "ff"}, "<|im_start|>", "a b"]
OPTIONS = {
    "stop": st.sampled_from(["e", " a", "zz", ["é", "zzz"]]),
    "stop_regex": st.sampled_from([r"[aeiou]\w", r"\s\w"]),
    "no_stop_trim": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "min_tokens": st.integers(0, 5),
    "n": st.integers(1, 2),
    "return_token_ids": st.booleans(),
}


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=8),
    options=st.fixed_dictionaries({}, optional=OPTIONS),
    top=st.integers(0, 3),
)
def test_whatever_is_asked_a_stream_agrees_and_bytes_are_the_text(url: str, pieces: list[Any], options: Any, top: int) -> None:
    more = {**options, "seed": 5, "max_tokens": 12}
    for choice in both(url, {"messages": script(*pieces, "end"), "logprobs": True, "top_logprobs": top, **more}).values():
        data = content_bytes(choice["logprobs"])
        if "\ufffd" not in choice["text"]:
            assert data.startswith(choice["text"].encode())
            if not options.keys() & {"stop", "stop_regex"}:
                assert data == choice["text"].encode()
    both(url, {"prompt": text_script(*pieces, "end"), "logprobs": top, "echo": True, **more}, COMPLETIONS)


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        (CHAT, "top_logprobs", {"top_logprobs": 3}),
        (CHAT, "top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        (CHAT, "top_logprobs", {"logprobs": True, "top_logprobs": -1}),
        (CHAT, "prompt_logprobs", {"prompt_logprobs": 21}),
        (CHAT, "prompt_logprobs", {"prompt_logprobs": -1}),
        (CHAT, "prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        (COMPLETIONS, "logprobs", {"logprobs": 21}),
        (COMPLETIONS, "logprobs", {"logprobs": -1}),
        (COMPLETIONS, "logprobs", {"logprobs": True}),
        (COMPLETIONS, "top_logprobs", {"logprobs": 1, "top_logprobs": 1}),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(url: str, path: str, field: str, body: dict[str, Any]) -> None:
    prompt: dict[str, Any] = {"messages": script("a")} if path == CHAT else {"prompt": "a"}
    result = ask(url, {**prompt, **body}, path=path)
    assert (result.status, result.error["param"]) == (400, field)
    assert_serves(url)
