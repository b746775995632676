"""Failures that people met with servers like ours, each with a minimal input, over HTTP with a scripted executor."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.support.chat import ask, ask_both, ask_streamed, assert_serves, script
from tests.support.sse import parse_events

HI = [{"role": "user", "content": "hi"}]
EOS = "<|im_end|>"


@pytest.fixture
def url(scripted_server: str) -> str:
    return scripted_server


# --- text


def test_the_end_of_turn_token_is_not_text(url: str) -> None:
    for result in ask_both(url, {"messages": script("Hello", EOS)}):
        assert (result.content, result.finish_reason) == ("Hello", "stop")


def test_tokens_after_the_end_in_the_same_step_are_neither_sent_nor_counted(url: str) -> None:
    for result in ask_both(url, {"messages": script(["A", EOS, " junk"])}):
        assert (result.content, result.finish_reason) == ("A", "stop")
        assert result.usage is not None
        assert result.usage["completion_tokens"] == 2


def test_a_character_cut_by_the_token_limit_is_the_same_in_both_modes(url: str) -> None:
    plain, stream = ask_both(url, {"messages": script("Hi ", {"bytes": "f09f"}, "lost"), "max_tokens": 5})
    assert plain.content == stream.content
    assert plain.finish_reason == stream.finish_reason == "length"


def test_undecodable_bytes_do_not_disturb_the_stream_or_its_neighbours(url: str) -> None:
    for result in ask_both(url, {"messages": script({"bytes": "e2"}, " ", {"bytes": "bb"}, "ok")}):
        assert result.content == "� �ok"
    assert_serves(url)


# --- stops


@pytest.mark.parametrize("stop", [None, [], "END"], ids=["null", "empty-list", "string"])
def test_a_stop_that_does_not_occur_changes_nothing(url: str, stop: Any) -> None:
    for result in ask_both(url, {"messages": script("hENo"), "stop": stop}):
        assert (result.content, result.finish_reason) == ("hENo", "stop")


@pytest.mark.parametrize("stop", ["", [""], ["", "END"]])
def test_an_empty_stop_string_is_refused(url: str, stop: Any) -> None:
    result = ask(url, {"messages": script("hello"), "stop": stop})
    assert result.status == 400
    assert result.error["param"] == "stop"


def test_too_many_or_too_long_stops_are_refused(url: str) -> None:
    result = ask(url, {"messages": HI, "stop": ["x" * 1000 + str(i) for i in range(10000)]})
    assert (result.status, result.error["param"]) == (400, "stop")
    assert_serves(url)


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "matched"),
    [
        pytest.param([" delta", " epsilon", " zeta", " eta", " theta", " iota"], [" zeta eta theta"], " delta epsilon",
                     " zeta eta theta", id="across-tokens"),
        pytest.param([["ab END cd STOP ef"]], ["STOP", "END"], "ab ", "END", id="earliest-in-one-step"),
        pytest.param(["one,", " two,", " five", " six"], ["five"], "one, two, ", "five", id="before-the-rest"),
        pytest.param(["x", "y"], ["xyz"], "xy", None, id="a-prefix-that-never-grew"),
    ],
)  # fmt: skip
def test_text_ends_before_the_earliest_stop(
    url: str, pieces: list[Any], stops: list[str], text: str, matched: str | None
) -> None:
    for result in ask_both(url, {"messages": script(*pieces), "stop": stops}):
        assert (result.content, result.finish_reason) == (text, "stop")
    if matched is not None:
        plain = ask(url, {"messages": script(*pieces), "stop": stops})
        assert plain.body["choices"][0]["matched_stop"] == matched


def test_no_part_of_a_stop_is_ever_sent(url: str) -> None:
    # a pause between steps, so that each makes an event of its own; events of an unpaced stream may merge
    stream = ask_streamed(url, {"messages": script("a", "b", "EN", "TER", " E", "N", "D", "x", step_ms=30), "stop": ["END"]})
    assert stream.content == "abENTER "
    deltas = [c["delta"].get("content") or "" for e in stream.events if e.data != "[DONE]" for c in e.data["choices"]]
    assert not any(delta.endswith(("E", "EN", "END")) for delta in deltas)


@pytest.mark.parametrize(
    ("pieces", "fields", "text", "matched"),
    [
        pytest.param(["call 55", "5-12", "34 now"], {"stop_regex": r"\d{3}-\d{4}"}, "call ", "555-1234", id="across-tokens"),
        pytest.param([["ab END12 STOP"]], {"stop": "STOP", "stop_regex": [r"END\d"]}, "ab ", "END1", id="beside-a-string"),
        pytest.param(["x<", "b", "r"], {"stop_regex": "<br/?>"}, "x<br", None, id="a-beginning-that-never-grew"),
        pytest.param(["a1", "b2"], {"stop_regex": r"\d", "min_tokens": 3}, "a1b", "2", id="after-min-tokens"),
        pytest.param(["a", "b!c"], {"stop_regex": "b.", "no_stop_trim": True}, "ab!", "b!", id="untrimmed"),
    ],
)  # fmt: skip
def test_text_ends_before_the_first_match_of_a_stop_regex(
    url: str, pieces: list[Any], fields: dict[str, Any], text: str, matched: str | None
) -> None:
    plain, stream = ask_both(url, {"messages": script(*pieces), **fields, "n": 2})
    assert (stream.content, stream.finish_reason) == (text, "stop")
    for choice in plain.body["choices"]:
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        assert choice["matched_stop"] == matched or (matched is None and isinstance(choice["matched_stop"], int))


def test_a_stop_regex_that_explodes_elsewhere_delays_nobody(url: str) -> None:
    result = ask(url, {"messages": script("a" * 20_000, "b"), "stop_regex": "(a+)+c|(a|a)*b", "max_tokens": 100_000})
    assert (result.content, result.finish_reason) == ("", "stop")
    assert_serves(url)


# --- finish reasons and usage


def test_the_token_limit_is_length(url: str) -> None:
    for result in ask_both(url, {"messages": script("a", "b", "c", "d"), "max_tokens": 3}):
        assert (result.content, result.finish_reason) == ("abc", "length")
        assert result.usage is not None
        assert result.usage["completion_tokens"] == 3


def test_a_fault_before_the_first_token_is_an_http_error(url: str) -> None:
    result = ask(url, {"messages": script("a", fault={"after": 0, "kind": "error"})})
    assert result.status == 500
    assert result.error["type"] == "server_error"
    assert_serves(url)


def test_usage_is_the_same_in_both_modes(url: str) -> None:
    plain, stream = ask_both(url, {"messages": script("a", "b", "c")})
    assert plain.usage is not None
    assert stream.usage is not None
    assert plain.usage["prompt_tokens"] == stream.usage["prompt_tokens"] > 0
    assert plain.usage["completion_tokens"] == stream.usage["completion_tokens"] == 3
    for usage in (plain.usage, stream.usage):
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None, "absent"])
def test_no_usage_chunk_unless_it_was_asked_for(url: str, options: Any) -> None:
    body = {"messages": script("a")} | ({} if options == "absent" else {"stream_options": options})
    stream = ask_streamed(url, body)
    assert stream.status == 200
    assert all(e.data["choices"] for e in stream.events if e.data != "[DONE]")


def test_the_usage_chunk_is_the_last_before_done(url: str) -> None:
    stream = ask_streamed(url, {"messages": script("a"), "stream_options": {"include_usage": True}})
    assert stream.events[-1].data == "[DONE]"
    assert stream.events[-2].data["choices"] == []
    assert stream.events[-2].data["usage"]["completion_tokens"] == 1


def test_several_choices_count_their_prompt_once(url: str) -> None:
    plain, stream = ask_both(url, {"messages": script("a", "b", "c", "d"), "n": 3, "max_tokens": 4})
    single = ask(url, {"messages": script("a", "b", "c", "d"), "max_tokens": 4})
    assert single.usage is not None
    for result in (plain, stream):
        assert result.usage is not None
        assert result.usage["completion_tokens"] == 12
        assert result.usage["prompt_tokens"] == single.usage["prompt_tokens"]
    assert [c["index"] for c in plain.body["choices"]] == [0, 1, 2]
    assert len({e.data["id"] for e in stream.events if e.data != "[DONE]"}) == 1


# --- protocol


def test_null_means_absent(url: str) -> None:
    names = ("max_tokens", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "stream_options", "tools",
             "response_format", "user")  # fmt: skip
    assert ask(url, {"messages": script("a"), **dict.fromkeys(names)}).content == "a"
    assert ask(url, {"prompt": "test", "temperature": 0, "max_tokens": None}, path="/v1/completions").status == 200


def test_max_completion_tokens_counts_for_completions_too(url: str) -> None:
    result = ask(url, {"prompt": "a", "max_completion_tokens": 50}, path="/v1/completions")
    assert result.usage is not None
    assert result.usage["completion_tokens"] == 50


def test_completions_make_sixteen_tokens_by_default(url: str) -> None:
    result = ask(url, {"prompt": "a"}, path="/v1/completions")
    assert result.usage is not None
    assert (result.usage["completion_tokens"], result.finish_reason) == (16, "length")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"99999999": 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 5}),
        ("logit_bias", {"1": 1000}),
        ("temperature", 999999.0),
        ("temperature", -1),
        ("top_p", -1),
        ("top_p", 1.5),
        ("presence_penalty", 9),
        ("repetition_penalty", 0),
        ("top_k", -7),
        ("max_tokens", -5),
        ("max_tokens", 0),
        ("n", 0),
        ("n", 1000000),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [10**9]),
        ("stop_token_ids", [[1]]),
        ("seed", "x"),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"content": "no role"}]),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "xml"}),
        ("logprobs", 3),
        ("stop_regex", "(a"),
        ("stop_regex", "a*"),
        ("stop_regex", ["ok", r"(a)\1"]),
        ("stop_regex", ["x"] * 33),
        ("stop_regex", "x" * 257),
        ("no_such_field", 1),
        ("chat_template", "{% for i in range(99999999) %}x{% endfor %}"),
        ("prompt_embeds", "AAAA"),
    ],
)
def test_what_is_wrong_or_unknown_is_refused_by_name(url: str, field: str, value: Any) -> None:
    result = ask(url, {"messages": HI, "max_tokens": 2, **{field: value}})
    assert result.status == 400, result
    assert field in result.error["message"] or field in (result.error["param"] or "")
    assert result.error["type"] == "invalid_request_error"
    assert_serves(url)


@pytest.mark.parametrize(
    "raw",
    [
        '{"messages":[{"role":"user","content":"hi"}],"temperature":NaN,"top_p":Infinity}',
        '{"messages":[{"role":"user","content":"bad \\ud83d end"}],"stop":["\\udc00"],"max_tokens":2}',
        '{"messages":[{"role":"user","content":"hi"}],"seed":1' + "0" * 60 + "}",
        '{"messages":[{"role":"user","content":"hi"}]',
        "",
        "[]",
        '"text"',
        "\xff",
        "[" * 100000,
    ],
    ids=["nan", "lone-surrogate", "huge-integer", "cut", "empty", "list", "string", "not-utf8", "deep"],
)
def test_what_is_not_json_of_ours_is_a_400(url: str, raw: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{url}/v1/chat/completions", content=raw.encode("latin1"), headers=headers, timeout=30)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert_serves(url)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [5279552648203111001], "max_tokens": 1}),
        ("/v1/completions", {"prompt": [10**30], "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 10**18}),
    ],
)
def test_integers_beyond_any_use_are_refused(url: str, path: str, body: dict[str, Any]) -> None:
    assert ask(url, body, path=path).status == 400
    assert_serves(url)


ID_LISTS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": HI}, "stop_token_ids"),
    ("/v1/chat/completions", {"messages": HI}, "allowed_token_ids"),
    ("/v1/completions", {}, "prompt"),
    ("/v1/completions", {"prompt": "a"}, "stop_token_ids"),
    ("/v1/responses", {"input": "a"}, "stop_token_ids"),
    ("/v1/embeddings", {}, "input"),
    ("/generate", {}, "input_ids"),
    ("/generate", {"text": "a", "return_logprob": True}, "token_ids_logprob"),
    ("/v1/score", {"query": "a", "items": "b"}, "label_token_ids"),
    ("/v1/score", {"items": [[5]], "label_token_ids": [5]}, "query"),
    ("/detokenize", {}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "field"), ID_LISTS, ids=[f"{path}: {field}" for path, _, field in ID_LISTS])
def test_every_list_of_token_ids_is_checked_before_the_engine_has_it(
    url: str, path: str, body: dict[str, Any], field: str
) -> None:
    for wrong in ([-1], [10**9], [10**30], [[[5]]], [1.5], [True], ["5", 5]):
        result = ask(url, {**body, field: wrong}, path=path)
        assert (result.status, result.error["type"]) == (400, "invalid_request_error"), wrong
        assert field in (result.error["param"] or "") or field in result.error["message"]
    assert_serves(url)


def test_a_seed_beyond_63_bits_is_served_or_refused(url: str) -> None:
    assert ask(url, {"messages": script("a"), "seed": 2**63}).status in (200, 400)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_says_so_before_the_stream(url: str, stream: bool) -> None:
    limit = httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"]
    ids = [5] * (limit + 1)
    result = ask(url, {"prompt": ids, "max_tokens": 1, "stream": stream}, path="/v1/completions")
    assert (result.status, result.error["code"]) == (400, "context_length_exceeded")
    assert str(limit) in result.error["message"]
    assert str(limit + 1) in result.error["message"]
    over = ask(url, {"messages": HI, "max_tokens": limit + 1, "stream": stream})
    assert (over.status, over.error["code"]) == (400, "context_length_exceeded")
    assert_serves(url)


def test_two_requests_with_one_request_id_header_are_both_served(url: str) -> None:
    results: list[httpx.Response] = []

    def one() -> None:
        body = {"messages": HI, "max_tokens": 50, "stream": True}
        results.append(httpx.post(f"{url}/v1/chat/completions", json=body, headers={"X-Request-Id": "same"}, timeout=30))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.status_code for r in results] == [200, 200]
    assert len({parse_events(r.content)[0].data["id"] for r in results}) == 2


def test_a_rid_that_is_live_is_refused_and_the_first_is_unharmed(url: str) -> None:
    body = {"messages": script("slow", delay_ms=60000), "rid": "mine", "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as first:
        assert first.status_code == 200
        lines = first.iter_lines()
        next(lines)
        second = ask(url, {"messages": HI, "rid": "mine", "max_tokens": 1})
        assert (second.status, second.error["param"]) == (409, "rid")
        assert httpx.get(f"{url}/server_info", timeout=30).json()["live_requests"] == 1
        aborted = httpx.post(f"{url}/abort_request", json={"rid": "min"}, timeout=30)
        assert aborted.status_code == 404
        assert httpx.post(f"{url}/abort_request", json={"rid": "mine"}, timeout=30).json() == {"aborted": ["mine"]}
        assert '"error"' in [line for line in lines if line][-1]
    assert_serves(url)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/nope", None, 404),
        ("GET", "/v1/chat/completions", None, 405),
        ("POST", "/v1/chat/completions", {"model": "no-such-model", "messages": HI}, 404),
        ("GET", "/v1/models/no-such-model", None, 404),
    ],
)
def test_every_error_has_the_envelope(url: str, method: str, path: str, body: Any, status: int) -> None:
    response = httpx.request(method, url + path, json=body, timeout=30)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    if body:
        assert response.json()["error"]["code"] == "model_not_found"


def test_another_content_type_is_refused(url: str) -> None:
    response = httpx.post(
        f"{url}/v1/chat/completions", content=json.dumps({"messages": HI}), headers={"Content-Type": "text/plain"}
    )
    assert response.status_code == 415
    assert response.json()["error"]["message"]


# --- server-sent events


def test_a_fault_in_mid_stream_is_an_error_event_and_the_end(url: str) -> None:
    stream = ask_streamed(url, {"messages": script("a", "b", "c", fault={"after": 2, "kind": "error"})})
    assert stream.content == "ab"
    assert set(stream.events[-1].data["error"]) == {"message", "type", "param", "code"}
    assert stream.finish_reason is None
    assert_serves(url)


def test_a_step_that_raises_ends_its_requests_and_nothing_else(url: str) -> None:
    stream = ask_streamed(url, {"messages": script("a", "b", fault={"after": 1, "kind": "raise"})})
    assert "error" in stream.events[-1].data
    assert_serves(url)


def test_roles_ids_and_framing_are_as_the_protocol_has_them(url: str) -> None:
    stream = ask_streamed(url, {"messages": script("line1\n", "line2\r\n", " end\u2028x")})
    assert stream.content == "line1\nline2\r\n end\u2028x"
    chunks = [event.data for event in stream.events[:-1]]
    assert stream.events[-1].data == "[DONE]"
    assert sum(event.data == "[DONE]" for event in stream.events) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
