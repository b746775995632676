"""ChatTemplate: a model's Jinja template, rendered in a sandbox set up as the models' authors expect.

Used by `ChatPrompts` to turn chat messages into prompt text, and once at load to find the end-of-turn token. The environment is
the one `transformers` documents for chat templates (`template_environment`). A template comes from the model or the
operator, never from a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes

from millstream.errors import RequestError, StartupError
from millstream.text.conversation import normalise, with_parts
from millstream.text.template_environment import RENDER_ERRORS, Budget, TemplateTooLong, compile_template, run_template
from millstream.text.template_style import CONTENT_MARK, closing_turns, find_style, plain_turns

RESERVED_NAMES = frozenset(
    {
        *("messages", "conversation", "tools", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"),
        *("return_dict", "return_tensors", "return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens"),
        *("padding", "truncation", "max_length"),
    }
)
QUICK_STEPS = 10_000  # of a conversation of a few words: a template that takes more is never quick
HINT = "pass a working template with --chat-template"


class ChatTemplate:
    """One compiled template and what it takes. Rendering does not change it; it may be shared by threads.

    `closing_text` is what the template writes after the last assistant message's content, such as `<|im_end|>` and a line
    break; "" where it writes nothing or cannot be asked. `plain_text` is an ordinary conversation of a few letters,
    rendered; "" likewise. `variables` are those that it reads; `uses_tools` tells whether it reads `tools`, `writes_tool_calls`
    whether calls and their results in the messages come out, `is_slow` whether it has much to do even for a few words.
    `looked_for` is all it compares something with: among that, what it looks for in messages.

    Raises:
        StartupError: the source is not a valid template, or one that does not come to an end.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template, syntax = compile_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(f"the chat template is not valid, line {error.lineno}: {error.message}", hint=HINT) from error
        except RecursionError as error:
            raise StartupError("the chat template is not valid: it is nested too deeply.", hint=HINT) from error
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(syntax))
        self.uses_tools = "tools" in self.variables
        self.is_slow = False
        self.looked_for = frozenset(_texts(syntax.find_all((nodes.Compare, nodes.Call))))
        self.style = find_style(self._try_render, knows_developer="developer" in _texts([syntax]))
        self.writes_tool_calls = self.style.writes_tool_calls
        closed = self._try_styled(closing_turns())
        self.closing_text = closed.rpartition(CONTENT_MARK)[2] if CONTENT_MARK in closed else ""
        self.plain_text = next((text for turns in plain_turns() if (text := self._try_styled(turns))), "")

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        rewrite: Callable[[Any], Any] = lambda value: value,
    ) -> str:
        """Return the prompt text. It holds its own BOS if it needs one: encode it with `add_special_tokens=False`.

        With `continue_final_message` the text ends with the last assistant message's content, and no generation prompt is
        added. Without it an assistant message at the end is rendered like any other. `rewrite` is applied to all that is not
        the template's own, once it is in the form the template takes.

        Raises:
            RequestError: the conversation, or a name in `kwargs`, is not one the template takes; with its own message.
        """
        self._check_names(kwargs or {})
        plain = rewrite(normalise(messages, self.style))
        if continue_final_message:
            plain = _marked_final(plain)
        variables = {
            **self._special_tokens,
            "documents": rewrite(documents or None),
            **rewrite(dict(kwargs or {})),
            "messages": with_parts(plain) if self.style.wants_parts else plain,
            "tools": rewrite(tools or None),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            text = run_template(self._template, variables, Budget())
        except RENDER_ERRORS as error:
            raise RequestError(f"the chat template refuses this conversation: {_said(error)}", param="messages") from error
        except TemplateTooLong as error:
            raise RequestError(f"the chat template did not come to an end: {error}.", param="messages") from None
        return _cut_at_mark(text) if continue_final_message else text

    def _check_names(self, kwargs: Mapping[str, Any]) -> None:
        for name in kwargs:
            reserved = name in RESERVED_NAMES or name in self._special_tokens or name in self._template.environment.globals
            if reserved or not name.isidentifier():
                why = "set by the server" if reserved else "not a variable name"
                raise RequestError(f"chat_template_kwargs must not have `{name}`: it is {why}.", param="chat_template_kwargs")

    def _try_render(self, messages: list[dict[str, Any]]) -> str | None:
        budget = Budget()
        variables = {**self._special_tokens, "messages": messages, "tools": None, "add_generation_prompt": False}
        try:
            return run_template(self._template, variables, budget)
        except RENDER_ERRORS:
            return None
        except TemplateTooLong as error:
            raise StartupError(f"the chat template does not come to an end: {error}.", hint=HINT) from None
        finally:
            self.is_slow |= budget.steps > QUICK_STEPS

    def _try_styled(self, messages: list[dict[str, Any]]) -> str:
        return self._try_render(with_parts(messages) if self.style.wants_parts else messages) or ""


def _texts(parts: Iterable[nodes.Node]) -> set[str]:
    """All literal texts in parts of a template."""
    return {const.value for part in parts for const in part.find_all(nodes.Const) if isinstance(const.value, str)}


def _said(error: BaseException) -> str:
    """What an error says; those of the interpreter's own limits say nothing a client understands."""
    if isinstance(error, RecursionError | MemoryError):
        return "it goes too deep." if isinstance(error, RecursionError) else "it takes too much memory."
    return str(error)


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
