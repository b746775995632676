"""From chat messages to a prompt, through the model's chat template. Called by every API that takes a conversation."""

from __future__ import annotations

from functools import partial
from typing import Any

from millstream.entry.chat_messages import check_messages, item_count, no_tool_calls, text_size
from millstream.entry.prompt_encoder import INLINE_CHARS, ITEM_CHARS
from millstream.entry.service import Service
from millstream.errors import RequestError


async def render(
    service: Service,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    kwargs: dict[str, Any],
) -> str | list[int]:
    """The prompt of a conversation, made off the event loop where it is long: text or, where only those are right, ids.

    Raises:
        RequestError: the messages are wrong, or the template refuses them.
    """
    chat, prompts = service.chat, service.manager.prompts
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
        )
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    first_tooled = check_messages(messages)
    template = chat.template_for(has_tools=first_tooled is not None)
    if first_tooled is not None and not template.writes_tool_calls:
        raise no_tool_calls(f"messages[{first_tooled}]")
    size = text_size(messages)
    prompts.check_size(size, "messages")
    work = partial(
        chat.render,
        template,
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        kwargs=kwargs,
    )
    cost = size + ITEM_CHARS * (item_count(messages) - 1)
    text = await prompts.off_loop(max(cost, INLINE_CHARS + 1) if template.is_slow else cost, work)
    if not chat.needs_ids(text):
        return text
    return await prompts.encode(text, add_special_tokens=False, param="messages", encode=chat.encode)
