"""ChatTemplate: a model's Jinja template, rendered in a sandbox set up as the models' authors expect.

Used by the entry to turn chat messages into prompt text, and once at load to find the end-of-turn token. The environment is
the one `transformers` documents for chat templates. A template comes from the model or the operator, never from a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from millstream.errors import RequestError, StartupError
from millstream.text.conversation import TemplateStyle, normalise, with_parts

RESERVED_NAMES = frozenset(
    {
        *("messages", "conversation", "tools", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"),
        *("return_dict", "return_tensors", "return_assistant_tokens_mask", "tokenizer_kwargs"),
        *("padding", "truncation", "max_length"),
    }
)
CONTENT_MARK = "millstreamMarksContentHere"  # plain letters: no filter of a template changes them
# what a template can raise on a conversation it was not written for
RENDER_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ChatTemplate:
    """One compiled template and what it takes. Rendering does not change it; it may be shared by threads.

    `closing_text` is what the template writes after the last assistant message's content, such as `<|im_end|>` and a line
    break; "" where it writes nothing or cannot be asked. `uses_tools` tells whether the template reads `tools` at all.

    Raises:
        StartupError: the source is not a valid template.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self._environment = _environment()
        self._special_tokens = dict(special_tokens)
        try:
            syntax = self._environment.parse(source)
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise StartupError(
                f"the chat template is not valid: {error}", hint="pass a working template with --chat-template FILE"
            ) from error
        self.uses_tools = "tools" in jinja2.meta.find_undeclared_variables(syntax)
        wants_parts = self._wants_parts()
        self._style = TemplateStyle(
            wants_parts=wants_parts,
            wants_argument_text=self._wants_argument_text(wants_parts),
            knows_developer=any(node.value == "developer" for node in syntax.find_all(nodes.Const)),
        )
        self.closing_text = self._find_closing_text()

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text. It holds its own BOS if it needs one: encode it with `add_special_tokens=False`.

        With `continue_final_message` the text ends with the last assistant message's content, and no generation prompt is
        added. Without it an assistant message at the end is rendered like any other.

        Raises:
            RequestError: the conversation, or a name in `kwargs`, is not one the template takes; with its own message.
        """
        extra = self._checked_kwargs(kwargs or {})
        plain = normalise(messages, self._style)
        if continue_final_message:
            plain = _marked_final(plain)
        variables = {
            **self._special_tokens,
            **extra,
            "messages": with_parts(plain) if self._style.wants_parts else plain,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            text = self._template.render(variables)
        except RENDER_ERRORS as error:
            raise RequestError(f"the chat template refuses this conversation: {error}", param="messages") from error
        return _cut_at_mark(text) if continue_final_message else text

    def _checked_kwargs(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in kwargs:
            reserved = name in RESERVED_NAMES or name in self._special_tokens or name in self._environment.globals
            if reserved or not name.isidentifier():
                why = "set by the server" if reserved else "not a variable name"
                raise RequestError(f"chat_template_kwargs must not have `{name}`: it is {why}.", param="chat_template_kwargs")
        return kwargs

    def _try_render(self, messages: list[dict[str, Any]]) -> str | None:
        try:
            return self._template.render({**self._special_tokens, "messages": messages, "add_generation_prompt": False})
        except RENDER_ERRORS:
            return None

    def _wants_parts(self) -> bool:
        """Whether text content is lost or refused, and a list of parts is read."""
        message = {"role": "user", "content": CONTENT_MARK}
        as_text = self._try_render([message])
        if as_text is not None and CONTENT_MARK in as_text:
            return False
        as_parts = self._try_render(with_parts([message]))
        return as_parts is not None and CONTENT_MARK in as_parts and "'type'" not in as_parts

    def _wants_argument_text(self, wants_parts: bool) -> bool:
        """Whether an arguments object is refused or written as Python's repr, and JSON text is written as it is."""
        as_text = self._try_tool_call(json.dumps({CONTENT_MARK: 1}), wants_parts)
        if as_text is None or json.dumps({CONTENT_MARK: 1}) not in as_text:
            return False
        as_object = self._try_tool_call({CONTENT_MARK: 1}, wants_parts)
        return as_object is None or f"'{CONTENT_MARK}'" in as_object

    def _try_tool_call(self, arguments: Any, wants_parts: bool) -> str | None:
        call = {"id": "call00000", "type": "function", "function": {"name": "b", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        return self._try_render(with_parts(messages) if wants_parts else messages)

    def _find_closing_text(self) -> str:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": CONTENT_MARK}]
        text = self._try_render(with_parts(messages) if self._style.wants_parts else messages)
        return text.rpartition(CONTENT_MARK)[2] if text is not None and CONTENT_MARK in text else ""


def _marked_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copy `messages` with a mark where the last one's content ends: what the template writes after it is cut off."""
    final = messages[-1]
    if final["role"] != "assistant" or "tool_calls" in final:
        raise RequestError(
            "continue_final_message needs an assistant message without tool calls at the end of messages.",
            param="continue_final_message",
        )
    return [*messages[:-1], {**final, "content": final["content"] + CONTENT_MARK}]


def _cut_at_mark(text: str) -> str:
    head, mark, _ = text.rpartition(CONTENT_MARK)
    if not mark:
        raise RequestError(
            "the chat template does not write the last assistant message, so it cannot be continued.",
            param="continue_final_message",
        )
    return head


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training: here it is its body alone."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read the block and leave its body in place."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _to_json(
    value: Any,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    ensure_ascii: bool = False,
) -> str:
    # not Jinja's own: that one escapes HTML and sorts keys, and models were trained on neither
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
