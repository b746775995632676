"""Anthropic's messages become chat messages: nothing is dropped, nobody's words become another's, paths name what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.entry.anthropic.conversation import to_chat
from millstream.entry.anthropic.protocol import COUNT_TOKENS
from millstream.errors import RequestError

CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "x"}}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "seen"}
CHAT_RESULT = {"role": "tool", "tool_call_id": "t1", "name": "look", "content": "seen"}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def chat(*messages: dict[str, Any], tools: bool = True, **more: Any) -> list[dict[str, Any]]:
    return to_chat(COUNT_TOKENS.parse({"messages": list(messages), **more}), writes_tool_calls=tools)


def refusal(*messages: dict[str, Any], tools: bool = True) -> str | None:
    with pytest.raises(RequestError) as caught:
        chat(*messages, tools=tools)
    assert caught.value.param is not None
    assert caught.value.param in caught.value.message
    return caught.value.param


def test_texts_of_one_message_are_joined_as_they_are() -> None:
    assert chat(user(text("a"), text("b", cache_control={"type": "ephemeral"}))) == [{"role": "user", "content": "ab"}]


def test_neighbours_of_one_role_become_one_turn() -> None:
    messages = [{"role": "user", "content": "a"}, user(text("b")), assistant(text("c")), {"role": "assistant", "content": "d"}]
    assert chat(*messages) == [{"role": "user", "content": "a\n\nb"}, {"role": "assistant", "content": "c\n\nd"}]


def test_a_turn_of_many_messages_costs_no_more_than_each_of_them() -> None:
    messages = [{"role": "user", "content": "x" * 1000}] * 10_000  # joined one by one they would take minutes
    assert len(chat(*messages)[0]["content"]) == 10_000 * 1002 - 2


def test_an_empty_neighbour_adds_nothing() -> None:
    assert chat({"role": "user", "content": "a"}, {"role": "user", "content": ""}) == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_message_is_a_message(content: Any) -> None:
    assert chat({"role": "user", "content": content}) == [{"role": "user", "content": ""}]


def test_system_comes_first_and_is_one_with_a_system_message_behind_it() -> None:
    messages = chat({"role": "system", "content": "c"}, user(text("hi")), system=[text("a"), text("b")])
    assert messages == [{"role": "system", "content": "a\n\nb\n\nc"}, {"role": "user", "content": "hi"}]


def test_a_system_message_in_between_stays_there() -> None:
    messages = chat(user(text("hi")), {"role": "system", "content": "now short"})
    assert [message["role"] for message in messages] == ["user", "system"]


def test_calls_of_tools_and_their_results_keep_their_order() -> None:
    messages = chat(user(text("go")), assistant(text("I look."), CALL), user(RESULT, text("and?")))
    assert messages == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "I look.", "tool_calls": [CHAT_CALL]},
        CHAT_RESULT,
        {"role": "user", "content": "and?"},
    ]


def test_a_result_may_be_blocks_or_nothing_and_an_error_is_told_by_its_content() -> None:
    result = {**RESULT, "content": [text("a"), text("b")], "is_error": True}
    nothing = {"type": "tool_result", "tool_use_id": "t2"}
    messages = chat(assistant(CALL, {**CALL, "id": "t2"}), user(result, nothing))
    assert [message["content"] for message in messages[1:]] == ["ab", ""]


def test_calls_of_neighbours_are_calls_of_one_turn() -> None:
    messages = chat(assistant(CALL), assistant({**CALL, "id": "t2"}), user(RESULT))
    assert [call["id"] for call in messages[0]["tool_calls"]] == ["t1", "t2"]


def test_thoughts_go_where_templates_look_for_them() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assert chat(assistant(thought, text("a"))) == [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]


def test_text_behind_a_call_is_told_before_it_where_it_is_one_answer() -> None:
    assert chat(assistant(text("a"), CALL, text("b")), user(RESULT))[0] == {
        "role": "assistant",
        "content": "ab",
        "tool_calls": [CHAT_CALL],
    }
    assert refusal(assistant(CALL), assistant(text("b")), user(RESULT)) == "messages[1].content[0]"


def test_a_result_without_its_call_is_refused() -> None:
    assert refusal(user(RESULT)) == "messages[0].content[0].tool_use_id"


def test_a_call_without_its_result_cannot_be_continued() -> None:
    assert refusal(user(text("go")), assistant(CALL)) == "messages"


def test_an_image_in_a_result_is_refused_by_its_path() -> None:
    picture = {**RESULT, "content": [text("a"), {"type": "image", "source": {}}]}
    assert refusal(assistant(CALL), user(picture)) == "messages[1].content[0].content[1].type"


@pytest.mark.parametrize("block", [CALL, RESULT])
def test_blocks_of_the_wrong_role_are_refused(block: dict[str, Any]) -> None:
    wrong = user(block) if block is CALL else assistant(block)
    assert refusal(wrong) == "messages[0].content[0].type"


def test_calls_are_refused_where_the_template_would_drop_them() -> None:
    assert refusal(assistant(CALL), user(RESULT), tools=False) == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({**CALL, "input": "x"}, "input"),
        ({**CALL, "input": None}, "input"),
        ({**CALL, "id": 5}, "id"),
        ({"type": "tool_use", "id": "a", "input": {}}, "name"),
        ({**CALL, "extra": 1}, "extra"),
    ],
)
def test_a_wrong_call_is_refused_by_its_path(block: dict[str, Any], path: str) -> None:
    assert refusal(assistant(block)) == f"messages[0].content[0].{path}"
