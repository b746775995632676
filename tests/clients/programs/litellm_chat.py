"""LiteLLM as a client of the server at the first argument. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm

MESSAGES = [{"role": "user", "content": "Say three words about the sea. 🌊"}]


def request(**more: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24, "timeout": 60, "num_retries": 0, **more}
    return {"model": f"hosted_vllm/{sys.argv[2]}", "api_base": f"{sys.argv[1]}/v1", "api_key": "none", **chosen}


async def asynchronous() -> dict[str, Any]:
    answer = await litellm.acompletion(**request())
    stream = await litellm.acompletion(**request(stream=True))
    return {
        "text": answer.choices[0].message.content,
        "streamed": "".join([chunk.choices[0].delta.content or "" async for chunk in stream]),
    }


def failure(**more: Any) -> dict[str, Any]:
    try:
        litellm.completion(**request(**more))
    except (litellm.BadRequestError, litellm.NotFoundError) as error:
        return {"class": type(error).__name__, "status": error.status_code}
    return {}


def main() -> None:
    answer = litellm.completion(**request())
    text, finish, usage = "", [], []
    for chunk in litellm.completion(**request(stream=True, stream_options={"include_usage": True})):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
        if getattr(chunk, "usage", None) is not None:
            usage.append(chunk.usage.model_dump())
    asked = {name: value for name, value in request(max_tokens=4).items() if name != "messages"}
    plain = litellm.text_completion(**asked, prompt="One two three")
    found = {
        "text": answer.choices[0].message.content,
        "finish": answer.choices[0].finish_reason,
        "usage": answer.usage.model_dump(),
        "streamed": text,
        "streamed_finish": finish,
        "streamed_usage": usage,
        "completion": plain.choices[0].text,
        "async": asyncio.run(asynchronous()),
        "bad_value": failure(temperature=-1),
        "no_model": failure(model="hosted_vllm/nobody"),
    }
    print(json.dumps(found))


main()
