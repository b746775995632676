from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import RequestError, StartupError
from millstream.text.chat_template import ChatTemplate
from millstream.text.template_sources import builtin_template
from millstream.text.tokenizer import Tokenizer

CHATML = builtin_template("chatml")

PLAIN = "{% for m in messages %}<{{m.role}}>{{ m.content }}{% endfor %}"
PARTS_ONLY = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)
TRIMMING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, **options)


@pytest.mark.parametrize("source", [PLAIN, CHATML, TRIMMING, PARTS_ONLY])
def test_text_parts_render_as_the_joined_string_does(source: str) -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "world"}]
    text = render(source, [user(parts)])
    assert "Hello world" in text
    assert "[{" not in text
    assert text == render(source, [user("Hello world")])


@pytest.mark.parametrize("content", [None, "", []])
def test_empty_content_renders_as_nothing(content: object) -> None:
    assert render(PLAIN, [user("a"), {"role": "assistant", "content": content}]) == "<user>a<assistant>"


def test_the_template_sees_no_null_fields() -> None:
    source = "{% for m in messages %}{{ m.name is defined }},{{ m.tool_calls is defined }};{% endfor %}"
    assert (
        render(source, [{**user("a"), "name": None, "tool_calls": []}, {**user("b"), "name": "x"}]) == "False,False;True,False;"
    )


def test_the_conversation_of_the_caller_is_not_changed() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [user(None), {"role": "assistant", "content": None, "tool_calls": [call]}]
    render(PLAIN, messages)
    assert messages == [user(None), {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_a_templates_own_refusal_is_the_clients_error() -> None:
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render(source, [user("a"), user("b")])
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "expression",
    [
        "messages[9].content",
        "messages[0].content + 1",
        "(nothing.at.all)",
        "1 // 0",
        "messages.append(1)",
        "'x' | tojson(wrong=1)",
    ],
)
def test_whatever_a_template_stumbles_over_is_the_clients_error(expression: str) -> None:
    with pytest.raises(RequestError):
        render("{{ " + expression + " }}", [user("a")])


def test_a_template_cannot_reach_into_python() -> None:
    with pytest.raises(RequestError, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}", [user("a")])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% nonsense %}"])
def test_a_broken_template_stops_the_start(source: str) -> None:
    with pytest.raises(StartupError, match="chat template"):
        ChatTemplate(source, {})


def test_blocks_leave_no_blank_lines_and_loops_can_be_left() -> None:
    source = """{% for m in messages %}
    {% if loop.first %}
        {% continue %}
    {% endif %}
{{ m.content }}
{% endfor %}
"""
    assert render(source, [user("a"), user("b")]) == "b\n"


def test_the_date_and_the_generation_block_are_understood() -> None:
    text = render("{{ strftime_now('%Y') | length }}{% generation %}{{ messages[0].content }}{% endgeneration %}", [user("a")])
    assert text == "4a"


def test_tool_schemas_are_written_as_models_were_trained_on_them() -> None:
    tools = [{"b": "x < y & 'z' — 天气", "a": 1}]
    template = ChatTemplate("{{ tools[0] | tojson }}", {})
    assert template.render([user("a")], tools=tools) == '{"b": "x < y & \'z\' — 天气", "a": 1}'
    assert ChatTemplate("{{ tools | tojson(indent=1) }}", {}).render([user("a")], tools=[{"a": 1}]) == '[\n {\n  "a": 1\n }\n]'


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_none_for_the_template(tools: list[dict[str, Any]] | None) -> None:
    assert render("{{ tools is none }}", [user("a")], tools=tools) == "True"


def tool_conversation(arguments: object) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": arguments}}
    return [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "pong"}]


CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments<FILTER> }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("form", "arguments", "text"),
    [
        pytest.param(" | tojson", '{"b":"é","a":1}', '{"b": "é", "a": 1}', id="object"),
        pytest.param(" | tojson", "", "{}", id="empty-text"),
        pytest.param(" | tojson", None, "{}", id="null"),
        pytest.param(" | tojson", {"a": 1}, '{"a": 1}', id="already-an-object"),
        pytest.param(".items() | list | length", '{"a": 1}', "1", id="template-reads-the-object"),
        pytest.param("", '{"b":"é"}', '{"b":"é"}', id="template-writes-text-as-it-came"),
        pytest.param("", {"a": 1}, '{"a":1}', id="template-writes-text-of-an-object"),
        pytest.param(" + ';'", '{"a": 1}', '{"a": 1};', id="template-joins-text"),
    ],
)
def test_tool_call_arguments_come_in_the_form_the_template_takes(form: str, arguments: object, text: str) -> None:
    assert render(CALLS.replace("<FILTER>", form), tool_conversation(arguments)) == text


CALL = "messages[1].tool_calls[0].function"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}, "messages[1].content[1].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": ["a"]}, "messages[1].content[0]"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"content": "a"}, "messages[1].role"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, CALL),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, f"{CALL}.arguments"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}, f"{CALL}.arguments"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 5000}}]}, f"{CALL}.arguments"),
    ],
)
def test_what_no_template_can_take_is_refused_by_name(message: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(PLAIN, [user("a"), message])
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("messages", [[], [user("a")] * 10_001], ids=["none", "too-many"])
def test_the_number_of_messages_has_limits(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(RequestError) as caught:
        render(PLAIN, messages)
    assert caught.value.param == "messages"


def developer(content: str) -> dict[str, Any]:
    return {"role": "developer", "content": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param([developer("D"), user("u")], "<system>D<user>u", id="alone"),
        pytest.param([system("S"), developer("D"), user("u")], "<system>S\n\nD<user>u", id="after-the-system-message"),
        pytest.param([developer("D"), system("S"), user("u")], "<system>D\n\nS<user>u", id="before-the-system-message"),
        pytest.param([user("u"), developer("D"), user("v")], "<system>D<user>u<user>v", id="in-the-middle"),
        pytest.param([system("S"), user("u")], "<system>S<user>u", id="none"),
        pytest.param([developer("D"), developer("E")], "<system>D\n\nE", id="nothing-else"),
    ],
)
def test_developer_instructions_reach_a_template_that_does_not_know_the_role(messages: list[dict[str, Any]], text: str) -> None:
    assert (
        render(
            "{% for m in messages %}{% if m.role in ['system', 'user'] %}<{{m.role}}>{{m.content}}{% endif %}{% endfor %}",
            messages,
        )
        == text
    )


def test_a_template_that_knows_the_developer_role_gets_it() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'developer' %}({{ m.content }}){% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render(source, [system("S"), developer("D"), user("u")]) == "S(D)u"


@pytest.mark.parametrize("content", ["Once upon", "ends in spaces  \n", "", [{"type": "text", "text": "Once upon"}]])
def test_a_continued_message_is_open_at_its_end(content: object) -> None:
    messages = [user("Tell"), {"role": "assistant", "content": content}]
    text = content if isinstance(content, str) else "Once upon"
    expected = f"<|im_start|>user\nTell<|im_end|>\n<|im_start|>assistant\n{text}"
    assert render(CHATML, messages, continue_final_message=True) == expected
    assert render(TRIMMING, messages, continue_final_message=True).endswith(f"[assistant]{text}")


def test_without_the_flag_a_final_assistant_message_is_closed_and_another_turn_opens() -> None:
    messages = [user("Tell"), {"role": "assistant", "content": "Once"}]
    assert render(TRIMMING, messages) == "[user]Tell[end]\n[assistant]Once[end]\n[assistant]"


def test_without_a_generation_prompt_nothing_opens() -> None:
    assert render(TRIMMING, [user("Tell")], add_generation_prompt=False) == "[user]Tell[end]\n"


@pytest.mark.parametrize(
    ("source", "final"),
    [
        pytest.param(PLAIN, user("a"), id="last-is-the-user"),
        pytest.param(PLAIN, {**tool_conversation("{}")[1], "content": "x"}, id="has-tool-calls"),
        pytest.param("{{ messages[0].content }}", {"role": "assistant", "content": "x"}, id="template-leaves-it-out"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(source: str, final: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        render(source, [user("a"), final], continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_the_clients_own_variables_reach_the_template() -> None:
    assert render("{{ enable_thinking }}{{ bos_token }}", [user("a")], kwargs={"enable_thinking": False}) == "False<s>"


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "bos_token", "raise_exception", "a b", ""],
)
def test_variables_of_the_server_cannot_be_set_by_a_client(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(PLAIN, [user("a")], kwargs={name: 1})
    assert caught.value.param == "chat_template_kwargs"


def test_a_variable_may_have_any_other_name() -> None:
    assert render("{{ self_ }}{{ source }}", [user("a")], kwargs={"self_": 1, "source": 2, "self": 3}) == "12"


@pytest.mark.parametrize(
    ("source", "closing"),
    [
        (CHATML, "<|im_end|>\n"),
        ("{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}", "</s>"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ""),
        ("{{ raise_exception('no') }}", ""),
        (PARTS_ONLY + "<end>", "<end>"),
    ],
)
def test_what_closes_an_assistant_message_is_found_by_rendering_one(source: str, closing: str) -> None:
    assert ChatTemplate(source, {"eos_token": "</s>"}).closing_text == closing


def test_the_embedded_models_prompt_is_its_own_templates(embedded: Tokenizer) -> None:
    template = ChatTemplate(embedded.chat_template or "", embedded.special_tokens)
    assert template.render([system("S"), user("u")]) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = embedded.encode(template.render([system("S"), user("u")]), add_special_tokens=False)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
