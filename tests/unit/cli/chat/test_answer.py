"""What events come to, and what the next request says of it."""

from __future__ import annotations

from typing import Any

from millstream.cli.chat.answer import Answer, Part
from millstream.cli.chat.conversation import Conversation


def event(reason: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def answer_of(*events: dict[str, Any]) -> Answer:
    answer = Answer()
    for each in events:
        answer.take(each)
    return answer


def test_text_and_reasoning_come_in_parts_under_either_of_its_names() -> None:
    answer = Answer()
    assert answer.take(event(role="assistant", content="")) == []
    assert answer.take(event(reasoning_content="hm")) == [Part("reasoning", "hm")]
    assert answer.take(event(reasoning=" well")) == [Part("reasoning", " well")]
    assert answer.take(event(content="Yes")) == [Part("text", "Yes")]
    assert answer.take(event("stop", content=".")) == [Part("text", ".")]
    assert answer.take(event(index=1, content="another")) == []
    assert answer.take({"choices": [], "usage": {"completion_tokens": 4}}) == []
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Yes.", "hm well", "stop")
    assert answer.usage == {"completion_tokens": 4}
    assert answer.message() == {"role": "assistant", "content": "Yes."}


def test_calls_are_put_together_by_their_index() -> None:
    answer = answer_of(
        event(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}]),
        event(
            tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}, {"index": 1, "id": "c2", "function": {"name": "now"}}]
        ),
        event("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
    )
    assert answer.message() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}},
        ],
    }


def test_a_conversation_sends_all_turns_and_only_what_was_set() -> None:
    conversation = Conversation("tiny", "Be kind.", {"temperature": 0, "max_tokens": None})
    conversation.ask("Hello")
    conversation.answered(answer_of(event("stop", content="Hi")))
    conversation.ask("Again")
    assert conversation.body(count_tokens=False) == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "Again"},
        ],
        "stream": True,
        "temperature": 0,
    }
    assert conversation.body(count_tokens=True)["stream_options"] == {"include_usage": True}
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be kind."}]


def test_a_question_without_an_answer_makes_room_for_the_next() -> None:
    conversation = Conversation("tiny", None, {})
    assert not conversation.rewind()
    conversation.ask("one")
    conversation.ask("two")
    conversation.answered(answer_of(event(content="half"), event(tool_calls=[{"id": "c", "function": {"name": "f"}}])))
    assert conversation.messages == [{"role": "user", "content": "two"}, {"role": "assistant", "content": "half"}]
    assert conversation.rewind()
    assert conversation.messages == [{"role": "user", "content": "two"}]
