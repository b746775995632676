"""A stop string within a thought, across its end and behind it: the same in all three APIs, plain and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.messages import Stop
from tests.support.asgi import run
from tests.unit.entry.anthropic import test_tools as messages
from tests.unit.entry.openai import test_chat_tools as chat
from tests.unit.entry.openai.responses import test_tools as responses

# what the text matcher passes on before the stop string; the stop string; the thought; the content
CASES = [
    ("<think>so", "X", "so", ""),
    ("<think>", "s", "", ""),
    ("<think>so", "</think>4", "so", ""),
    ("<think>so</thi", "nk>4", "so</thi", ""),
    ("<think>so</think>", "4", "so", ""),
    ("<think>so</think>fo", "ur", "so", "fo"),
]
CUTS = [lambda text: [text], list, lambda text: [text[:3], text[3:]]]


@pytest.mark.parametrize("cut", CUTS, ids=["whole", "characters", "two pieces"])
@pytest.mark.parametrize(("text", "stop", "thought", "content"), CASES)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
class TestAStopString:
    """What comes before it is thought or content, as it would be without it; the answer ends by the stop string."""

    def test_in_a_chat(self, text: str, stop: str, thought: str, content: str, *, stream: bool, cut: Any) -> None:
        answer = chat.ask(chat.entry(), {"stop": stop, "stream": stream}, *cut(text), finish=Stop(stop))
        made = chat.streamed(answer) if stream else chat.whole(answer)
        found = (made["reasoning_content"], made["content"], made["finish_reason"])
        assert found == (thought, content, "stop")
        last = answer.chunks[-1] if stream else answer.body
        assert last["choices"][0]["matched_stop"] == stop

    def test_in_a_message(self, text: str, stop: str, thought: str, content: str, *, stream: bool, cut: Any) -> None:
        answer = messages.said({"stop_sequences": [stop], "stream": stream}, *cut(text), finish=Stop(stop))
        made = messages.gathered(answer) if stream else messages.message_of(answer).to_dict(mode="json")
        assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", stop)
        blocks = made["content"]
        assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == thought
        assert "".join(block["text"] for block in blocks if block["type"] == "text") == content

    def test_in_a_response(self, text: str, stop: str, thought: str, content: str, *, stream: bool, cut: Any) -> None:
        async def scenario() -> None:
            made = await responses.answered(responses.entry(), {"stream": stream}, *cut(text), finish=Stop(stop))
            parts = [(item["type"], part["text"]) for item in made["output"] for part in item.get("content") or ()]
            assert "".join(said for kind, said in parts if kind == "reasoning") == thought
            assert "".join(said for kind, said in parts if kind == "message") == content
            assert made["status"] == "completed"

        run(scenario())
