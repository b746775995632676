"""Items of a conversation: their full form, their place in it, and the messages that the template gets."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.entry.openai.responses.conversation import to_messages
from millstream.entry.openai.responses.ids import input_id, keeper, new_response_id, output_id, response_of
from millstream.entry.openai.responses.items import to_items
from millstream.errors import RequestError
from millstream.text.conversation import MAX_MESSAGES

ID = new_response_id(0)
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}


def messages_of(value: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return to_messages(instructions, to_items(value, ID, writes_tool_calls=True))


@pytest.mark.parametrize("number", [0, 3, 255, 70000])
def test_ids_say_who_keeps_a_response_and_which_one_has_an_item(number: int) -> None:
    response_id = new_response_id(number)
    assert keeper(response_id) == number
    assert response_of(output_id("fc", response_id, 2)) == response_id
    assert response_of(input_id("fco", response_id, 17)) == response_id


@pytest.mark.parametrize(
    "wrong", ["", "resp_", "resp_x", "msg_" + "0" * 33, "resp_" + "0" * 32, "resp_" + "0" * 60, "é", "0" * 10**5]
)
def test_what_is_no_id_of_ours_leads_nowhere(wrong: str) -> None:
    assert keeper(wrong) is None


def test_the_number_of_items_is_bounded() -> None:
    with pytest.raises(RequestError) as caught:
        to_items([{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), ID, writes_tool_calls=False)
    assert caught.value.param == "input"


def test_text_and_messages_in_easy_form_get_the_full_form() -> None:
    (item,) = to_items("hi", ID, writes_tool_calls=False)
    assert item == {
        "id": input_id("msg", ID, 0), "type": "message", "role": "user", "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }  # fmt: skip
    (item,) = to_items([{"role": "assistant", "content": "hi", "phase": "final_answer"}], ID, writes_tool_calls=False)
    assert item["content"] == [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}]


def test_an_item_keeps_the_id_and_status_it_came_with() -> None:
    given = {"type": "message", "id": "msg_mine", "role": "user", "status": "incomplete", "content": []}
    assert to_items([given], ID, writes_tool_calls=False) == [given]


def test_instructions_come_first_and_reasoning_is_left_out() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert messages_of([reasoning, {"role": "user", "content": "hi"}], "Be brief.") == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert to_items([reasoning], ID, writes_tool_calls=False) == [reasoning]


def test_several_parts_stay_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of([{"role": "user", "content": parts}])[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    refusal = [{"type": "refusal", "refusal": "no"}]
    assert messages_of([{"role": "assistant", "content": refusal}])[0]["content"] == refusal


def test_function_calls_join_the_assistants_message_before_them() -> None:
    other = {**CALL, "call_id": "c2"}
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}} for call_id in ("c1", "c2")
    ]
    said = {"role": "assistant", "content": "I add."}
    user = {"role": "user", "content": "add"}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    assert messages_of([user, said, CALL, other, OUTPUT]) == [user, {**said, "tool_calls": calls}, tool]
    assert messages_of([user, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "2"}]}]) == [
        user,
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        tool,
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (OUTPUT, "input"),
        ({**CALL, "arguments": "[]"}, "input[0].arguments"),
        ({**CALL, "arguments": "{"}, "input[0].arguments"),
        ({**CALL, "arguments": {}}, "input[0].arguments"),
        ({**CALL, "name": None}, "input[0].name"),
        ({**CALL, "call_id": 5}, "input[0].call_id"),
        ({**OUTPUT, "output": None}, "input[0].output"),
        ({**OUTPUT, "output": [{"type": "input_image"}]}, "input[0].output[0].type"),
    ],
)
def test_a_wrong_function_item_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages_of([item])
    assert caught.value.param == param
