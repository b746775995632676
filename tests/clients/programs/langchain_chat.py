"""LangChain's ChatOpenAI against the server at the first argument. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from openai import BadRequestError

BASE = f"{sys.argv[1]}/v1"
MESSAGES = [SystemMessage("Be brief."), HumanMessage("Say three words about the sea. 🌊")]


def model(**more: Any) -> ChatOpenAI:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "timeout": 60, "max_retries": 0, **more}
    return ChatOpenAI(base_url=BASE, api_key="none", model=sys.argv[2], **options)


async def asynchronous() -> dict[str, Any]:
    chat = model()
    answer, batch = await chat.ainvoke(MESSAGES), await chat.abatch([MESSAGES, MESSAGES])
    chunks = [chunk async for chunk in chat.astream(MESSAGES)]
    return {
        "text": answer.content,
        "batch": [each.content for each in batch],
        "streamed": "".join(str(chunk.content) for chunk in chunks),
    }


def bad_value() -> dict[str, Any]:
    try:
        model(temperature=-1).invoke(MESSAGES)
    except BadRequestError as error:
        return {"status": error.status_code, "param": error.param, "request_id": error.request_id}
    return {}


def main() -> None:
    chat = model()
    answer = chat.invoke(MESSAGES)
    parts: Any = None
    for chunk in model(stream_usage=True).stream(MESSAGES):
        parts = chunk if parts is None else parts + chunk
    turns = [*MESSAGES, AIMessage(answer.content), HumanMessage("And three more.")]
    found = {
        "text": answer.content,
        "finish": answer.response_metadata["finish_reason"],
        "usage": answer.usage_metadata,
        "streamed": parts.content,
        "streamed_usage": parts.usage_metadata,
        "second_turn": chat.invoke(turns).content,
        "async": asyncio.run(asynchronous()),
        "bad_value": bad_value(),
    }
    print(json.dumps(found))


main()
