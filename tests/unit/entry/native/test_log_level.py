"""/log_level, and what a request's line may show."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from millstream.config import ServerConfig
from millstream.messages import SetLogLevel
from tests.support.asgi import Call, get, post, run, until
from tests.support.engine import Entry, engine_info, state

CHAT = {"messages": [{"role": "user", "content": "Sag nichts weiter"}]}


def test_the_level_is_asked_of_the_supervisor_and_answered_when_it_holds() -> None:
    async def scenario() -> None:
        entry = Entry()
        told: list[Any] = []

        def tell(message: Any) -> bool:
            told.append(message)
            return True

        entry.service._tell = tell
        call = Call(entry.app, "/log_level", {"level": "debug"})
        await until(lambda: bool(told))
        assert told == [SetLogLevel("debug")] and not call.task.done()
        entry.service.update(msgspec.structs.replace(state(engine_info()), log_level="debug"))
        answer = await call.response()
        assert (answer.status, answer.body) == (200, {"level": "debug"})
        assert (await get(entry.app, "/log_level")).body == {"level": "debug"}

    run(scenario())


def test_a_level_that_is_none_is_refused_by_name() -> None:
    async def scenario() -> None:
        answer = await post(Entry().app, "/log_level", {"level": "loud"})
        assert (answer.status, answer.error["param"]) == (400, "level")

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["none", "end", "text"])
def test_prompt_and_answer_are_logged_only_where_that_is_asked_for(
    how: Any, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(log_requests=how))
        entry.engine.answer = entry.engine.say("Gar", " nichts", ".")
        assert (await post(entry.app, "/v1/chat/completions", {**CHAT, "stream": stream})).status == 200

    with caplog.at_level(logging.INFO, logger="millstream.request"):
        run(scenario())
    shown = [record.getMessage() for record in caplog.records if record.name == "millstream.request"]
    assert len(shown) == (how != "none")
    if shown:
        assert ("Sag nichts weiter" in shown[0]) is ("answer_text='Gar nichts.'" in shown[0]) is (how == "text")
