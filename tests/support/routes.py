"""The routes that generate, behind one face: a question in OpenAI's names, asked plain and streamed, and answers in one form.

Each answer, chunk and event is checked against the official clients' own models on its way.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pydantic
from anthropic.types import Message
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent

from tests.support.known import known
from tests.support.logprobs import merged
from tests.support.native import join
from tests.support.openai_models import EXTENSIONS, extras, foreseen
from tests.support.sse import parse_events
from tests.unit.entry.anthropic.harness import events_of as message_events
from tests.unit.entry.openai.responses.harness import events_of as response_events

RESPONSE_EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)
COMPLETION_EXTENSIONS = EXTENSIONS | {"service_tier"}
SAMPLING = {
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "seed", "stop", "stop_regex", "stop_token_ids", "ignore_eos", "no_stop_trim", "skip_special_tokens", "min_tokens",
    "max_tokens",
}  # fmt: skip
_salts = itertools.count()


@dataclass(frozen=True)
class Question:
    """`fields` are named as in a chat; `logprobs` is the number of alternatives. `beginning` is what the answer continues."""

    prompts: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    beginning: str | None = None


@dataclass
class Choice:
    """One choice of an answer; what its route does not tell is None."""

    text: str
    finish: str | None
    matched: Any = None
    token_ids: list[int] | None = None
    logprobs: Any = None
    more: Any = None
    """What else its route tells of it."""


@dataclass
class Answer:
    """A whole answer."""

    choices: list[Choice]
    usage: Any = None
    more: Any = None


@dataclass(frozen=True)
class Route:
    """One route, with one way to stream."""

    path: str
    fields: set[str]
    body: Callable[[Question], dict[str, Any]]
    plain: Callable[[Any], Answer]
    streamed: Callable[[bytes], Answer]
    stream_fields: dict[str, Any] = field(default_factory=dict)
    takes_many: bool = False
    takes_beginning: bool = False

    def takes(self, question: Question) -> bool:
        """Whether all of the question can be said here."""
        fits = (len(question.prompts) == 1 or self.takes_many) and (question.beginning is None or self.takes_beginning)
        return fits and question.fields.keys() <= self.fields

    def ask(self, client: httpx.Client, question: Question) -> Answer:
        """The plain answer."""
        return self.plain(self._send(client, question).json())

    def ask_streamed(self, client: httpx.Client, question: Question) -> Answer:
        """The answer put together from a stream."""
        response = self._send(client, question, stream=True, **self.stream_fields)
        assert response.headers["content-type"].startswith("text/event-stream")
        return self.streamed(response.content)

    def _send(self, client: httpx.Client, question: Question, **more: Any) -> httpx.Response:
        # a salt of its own: what the prefix cache has would be in the usage
        body = {**self.body(question), **more, "cache_salt": f"question {next(_salts)}"}
        response = client.post(self.path, json=body)
        assert response.status_code == 200, (self.path, body, response.text)
        return response


# --- chats and completions


def _chat_body(question: Question) -> dict[str, Any]:
    body = {"messages": _messages(question), "return_token_ids": True, **question.fields}
    if question.beginning is not None:
        body["continue_final_message"] = True
    if "logprobs" in body:
        body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
    return body


def _messages(question: Question) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": question.prompts[0]}]
    return messages if question.beginning is None else [*messages, {"role": "assistant", "content": question.beginning}]


def _completion_body(question: Question) -> dict[str, Any]:
    prompts = question.prompts
    return {"prompt": prompts[0] if len(prompts) == 1 else list(prompts), "return_token_ids": True, **question.fields}


def _plain_chat(body: Any) -> Answer:
    assert extras(ChatCompletion, body) <= EXTENSIONS
    return _plain_openai(body, lambda choice: choice["message"]["content"])


def _plain_completion(body: Any) -> Answer:
    assert extras(Completion, foreseen(body)) <= COMPLETION_EXTENSIONS
    return _plain_openai(body, lambda choice: choice["text"])


def _plain_openai(body: Any, text: Callable[[Any], str]) -> Answer:
    choices = []
    for choice in body["choices"]:
        assert choice["index"] == len(choices)
        told = choice["logprobs"] if any((choice["logprobs"] or {}).values()) else None
        choices.append(Choice(text(choice), choice["finish_reason"], choice["matched_stop"], choice["token_ids"], told))
    return Answer(choices, body["usage"], body.get("prompt_token_ids"))


def _streamed_chat(content: bytes) -> Answer:
    chunks = _openai_chunks(content)
    for chunk in chunks:
        assert extras(ChatCompletionChunk, chunk) <= EXTENSIONS
    return _joined_openai(chunks, lambda choice: choice["delta"].get("content") or "")


def _streamed_completion(content: bytes) -> Answer:
    chunks = _openai_chunks(content)
    for chunk in chunks:
        assert extras(Completion, foreseen(chunk)) <= COMPLETION_EXTENSIONS
    return _joined_openai(chunks, lambda choice: choice["text"])


def _openai_chunks(content: bytes) -> list[dict[str, Any]]:
    *chunks, done = (event.data for event in parse_events(content))
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    return chunks


def _joined_openai(chunks: list[dict[str, Any]], text: Callable[[Any], str]) -> Answer:
    *chunks, last = chunks
    assert last["choices"] == []
    joined: dict[int, Choice] = {}
    prompt_ids = None
    for chunk in chunks:
        assert chunk["usage"] is None
        prompt_ids = chunk.get("prompt_token_ids", prompt_ids)
        for choice in chunk["choices"]:
            mine = joined.setdefault(choice["index"], Choice("", None, token_ids=[]))
            assert mine.finish is None, "nothing comes after the finish chunk"
            mine.text += text(choice)
            mine.token_ids += choice.get("token_ids") or []  # type: ignore[operator]
            mine.logprobs = merged(mine.logprobs, choice["logprobs"])
            mine.finish, mine.matched = choice["finish_reason"], choice.get("matched_stop")
    return Answer([joined[index] for index in sorted(joined)], last["usage"], prompt_ids)


# --- /generate


def _generate_body(question: Question) -> dict[str, Any]:
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
    fields = {names.get(name, name): value for name, value in question.fields.items() if name in SAMPLING | {"n"}}
    prompts = question.prompts
    body: dict[str, Any] = {"text": prompts[0] if len(prompts) == 1 else list(prompts), "sampling_params": fields}
    if "logprobs" in question.fields:
        body |= {"return_logprob": True, "top_logprobs_num": question.fields["logprobs"], "logprob_start_len": 0}
    return body


def _plain_generate(body: Any) -> Answer:
    answers = body if isinstance(body, list) else [body]
    return Answer([_generated(answer, index) for index, answer in enumerate(answers)])


def _generated(answer: dict[str, Any], index: int) -> Choice:
    chance = {"id", "e2e_latency"}
    if index:  # a fork of the first, or of what the cache has of it: whichever comes sooner
        chance |= {"cached_tokens", "cached_tokens_details"}
    meta = {name: value for name, value in answer["meta_info"].items() if name not in chance}
    told = {name: meta.pop(name) for name in list(meta) if "logprobs" in name}
    finish = meta.pop("finish_reason")
    return Choice(answer["text"], finish["type"], finish.get("matched"), answer["output_ids"], told, meta)


def _generate_events(content: bytes) -> list[list[dict[str, Any]]]:
    *events, done = (event.data for event in parse_events(content))
    assert done == "[DONE]"
    by_index: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        by_index.setdefault(event.get("index", 0), []).append(event)
    for own in by_index.values():
        assert [event["meta_info"]["finish_reason"] is not None for event in own] == [False] * (len(own) - 1) + [True]
    return [by_index[index] for index in sorted(by_index)]


def _streamed_deltas(content: bytes) -> Answer:
    return Answer([_generated(join(own), index) for index, own in enumerate(_generate_events(content))])


def _streamed_so_far(content: bytes) -> Answer:
    answers = _generate_events(content)
    for own in answers:
        for before, after in itertools.pairwise(own):
            assert after["text"].startswith(before["text"])
            assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    return Answer([_generated(own[-1], index) for index, own in enumerate(answers)])


# --- /v1/messages

MESSAGE_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


def _message_body(question: Question) -> dict[str, Any]:
    names = {"stop": "stop_sequences"}
    fields = {names.get(name, name): value for name, value in question.fields.items()}
    if isinstance(fields.get("stop_sequences"), str):
        fields["stop_sequences"] = [fields["stop_sequences"]]
    return {"model": "", "messages": _messages(question), "max_tokens": 64, **fields}


def _plain_message(body: Any) -> Answer:
    known(Message.model_validate(body, strict=True))
    (block,) = body["content"]
    finish = MESSAGE_FINISH[body["stop_reason"]]
    return Answer([Choice(block["text"], finish, body["stop_sequence"], more=body["stop_reason"])], body["usage"])


def _streamed_message(content: bytes) -> Answer:
    events = [(name, data) for name, data in message_events(content) if name != "ping"]
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert [name for name, _ in events if name != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    message = events[0][1]["message"]
    (ending,) = (data for name, data in events if name == "message_delta")
    return _plain_message(
        {
            **message,
            "content": [{"type": "text", "text": text}],
            **ending["delta"],
            "usage": {**message["usage"], **ending["usage"]},
        }
    )


# --- /v1/responses


def _response_body(question: Question) -> dict[str, Any]:
    names = {"max_tokens": "max_output_tokens"}
    fields = {names.get(name, name): value for name, value in question.fields.items()}
    if "logprobs" in fields:
        fields |= {"include": ["message.output_text.logprobs"], "top_logprobs": fields.pop("logprobs")}
    return {"input": question.prompts[0], **fields}


def _plain_response(body: Any) -> Answer:
    assert extras(OpenAIResponse, body) == set()
    (part,) = (part for item in body["output"] for part in item["content"])
    finish = {"completed": "stop", "incomplete": "length"}[body["status"]]
    return Answer([Choice(part["text"], finish, logprobs=part["logprobs"], more=body["incomplete_details"])], body["usage"])


def _streamed_response(content: bytes) -> Answer:
    events = response_events(content)
    for event in events:
        known(RESPONSE_EVENT.validate_python(event.data))
    deltas = [event.data for event in events if event.name == "response.output_text.delta"]
    answer = _plain_response(events[-1].data["response"])
    (choice,) = answer.choices
    assert "".join(delta["delta"] for delta in deltas) == choice.text
    entries = [entry for delta in deltas for entry in delta["logprobs"]]
    assert entries == json.loads(json.dumps(choice.logprobs), object_hook=_without_bytes)
    return answer


def _without_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "bytes"}  # which events of the Responses API do not have


_WITH_USAGE = {"stream_options": {"include_usage": True}}
_OPENAI = SAMPLING | {"n", "logprobs"}
ROUTES = {
    "chat": Route(
        "/v1/chat/completions", _OPENAI, _chat_body, _plain_chat, _streamed_chat, _WITH_USAGE, takes_beginning=True
    ),
    "completions": Route(
        "/v1/completions", _OPENAI | {"echo", "best_of"}, _completion_body, _plain_completion, _streamed_completion,
        _WITH_USAGE, takes_many=True,
    ),
    "generate, deltas": Route(
        "/generate", _OPENAI, _generate_body, _plain_generate, _streamed_deltas, {"incremental_streaming_output": True},
        takes_many=True,
    ),
    "generate, so far": Route("/generate", _OPENAI, _generate_body, _plain_generate, _streamed_so_far, takes_many=True),
    "messages": Route(
        "/v1/messages", {"max_tokens", "stop", "temperature", "top_p", "top_k", "seed"}, _message_body, _plain_message,
        _streamed_message, takes_beginning=True,
    ),
    "responses": Route("/v1/responses", SAMPLING | {"logprobs"}, _response_body, _plain_response, _streamed_response),
}  # fmt: skip
