"""Progress in a stream: comments before the first token, for those who ask, which change nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.messages import Progress, ProgressOutput, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import Entry

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
ASKED = {"stream_options": {"include_progress": True}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], **ASKED},
    COMPLETIONS: {"prompt": ["hi", "ho"], **ASKED},
    GENERATE: {"text": "hi", "include_progress": True},
}


@pytest.mark.parametrize("path", BODIES)
def test_progress_comes_as_comments_between_admission_and_the_first_token(path: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        count = 2 if path == COMPLETIONS else 1
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, path, {**BODIES[path], "stream": True})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, count)
        first, *others = entry.engine.requests
        assert (first.progress, [other.progress for other in others]) == (True, [False] * (count - 1))
        entry.manager.handle(ProgressOutput([Progress("gone", place=1), Progress(first.rid, place=3)]))
        await call.until(b": queued 3\n\n")
        entry.manager.handle(ProgressOutput([Progress(first.rid, done=512, total=2048)]))
        await call.until(b": prefill 512/2048\n\n")
        for sent in (first, *others):
            entry.engine.row(sent.rid, "Hel")
            entry.engine.say("lo")(sent)
        response = await call.response()
        assert response.events[-1].data == "[DONE]"
        assert response.content.index(b": queued") < response.content.index(b": prefill") < response.content.index(b"Hel")

    run(scenario())


@pytest.mark.parametrize("path", BODIES)
def test_nobody_is_told_who_did_not_ask_or_does_not_stream(path: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        await post(entry.app, path, BODIES[path])
        quiet = {key: value for key, value in BODIES[path].items() if key not in ("stream_options", "include_progress")}
        await post(entry.app, path, {**quiet, "stream": True})
        assert not any(sent.progress for sent in entry.engine.requests)

    run(scenario())
