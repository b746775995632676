"""ChatPrompts: conversations to prompts, as text or straight as ids.

The entry makes one from the model's tokenizer and templates. Rendered text is a prompt as it is, to be encoded like any other;
it holds the template's own BOS, so none is added. Where a message holds the text of a control token, a round trip through
text would take it for the token: then the ids are made here.
"""

from __future__ import annotations

from typing import Any

from millstream.errors import RequestError
from millstream.text.chat_template import ChatTemplate
from millstream.text.control_text import ControlText
from millstream.text.template_sources import DEFAULT, TOOL_USE
from millstream.text.tokenizer import Tokenizer


class ChatPrompts:
    """The chat templates of one model, the one for a conversation without tools and the one for tools, which may be the same.

    With `escape` the text of a control token in a message is ordinary text; without, it is the token.

    Raises:
        StartupError: a template is not valid.
    """

    def __init__(self, tokenizer: Tokenizer, sources: dict[str, str], *, escape: bool = True) -> None:
        special = tokenizer.special_tokens
        self._template = ChatTemplate(sources[DEFAULT], special)
        self._tool_template = ChatTemplate(sources[TOOL_USE], special) if TOOL_USE in sources else self._template
        self._control: ControlText | None = None
        if escape:
            self._control = tokenizer.control_text(self._template.plain_text, self._template.looked_for)

    def template_for(self, *, has_tools: bool) -> ChatTemplate:
        """The template for a conversation with or without tools, and calls of them."""
        return self._tool_template if has_tools else self._template

    def render(self, template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
        """The text of a conversation; `template` is one of `template_for`, `options` are those of `ChatTemplate.render`.

        Raises:
            RequestError: the conversation is not one the template takes.
        """
        if self._control is None:
            return template.render(messages, **options)
        try:
            return template.render(messages, rewrite=self._control.hide, **options)
        except RequestError as error:  # a template may quote the message that it refuses
            raise RequestError(self._control.reveal(error.message), param=error.param, code=error.code) from error

    def needs_ids(self, text: str) -> bool:
        """Whether only `encode` gives the right ids of rendered `text`; otherwise they are those of any text."""
        return self._control is not None and self._control.is_needed(text)

    def encode(self, text: str) -> list[int]:
        """The ids of rendered text that needs them.

        Raises:
            RequestError: the vocabulary cannot write it.
        """
        assert self._control is not None
        return self._control.encode(text)
