"""POST /parse_function_call and /separate_reasoning: the server's parsers over a text that a client has.

The same pipeline reads the answers of chats. Long texts are read in a thread.
"""

from __future__ import annotations

from functools import partial

from millstream.entry.http.exchange import Exchange
from millstream.entry.native.protocol import PARSE_CALLS, SEPARATE, ParseCallsRequest, SeparateRequest
from millstream.entry.parsers import named_reasoning_format, named_tool_format
from millstream.entry.service import Service
from millstream.entry.tools import read_tools
from millstream.errors import RequestError
from millstream.parsing.events import Parsed
from millstream.parsing.pipeline import Reading, parse

MAX_TEXT_CHARS = 2 * 1024 * 1024


async def parse_function_call(exchange: Exchange, service: Service) -> None:
    """Answer `{"normal_text", "calls"}`. A call that is not complete says so."""
    request = PARSE_CALLS.parse(await exchange.read_object())
    await exchange.while_connected(_calls(exchange, service, request))


async def _calls(exchange: Exchange, service: Service, request: ParseCallsRequest) -> None:
    format_ = named_tool_format(request.tool_call_parser, service.text.parsers)
    parsed = await _read(service, request.text, Reading(tool_format=format_, tools=read_tools(request.tools)))
    calls = [
        {"tool_index": index, "name": call.name, "parameters": call.arguments}
        | ({} if call.is_complete else {"incomplete": True})
        for index, call in enumerate(parsed.calls)
    ]
    await exchange.send_json({"normal_text": parsed.content, "calls": calls})


async def separate_reasoning(exchange: Exchange, service: Service) -> None:
    """Answer `{"reasoning_text", "text"}`."""
    request = SEPARATE.parse(await exchange.read_object())
    await exchange.while_connected(_reasoning(exchange, service, request))


async def _reasoning(exchange: Exchange, service: Service, request: SeparateRequest) -> None:
    format_ = named_reasoning_format(request.reasoning_parser, service.text.parsers)
    parsed = await _read(service, request.text, Reading(reasoning=format_))
    await exchange.send_json({"reasoning_text": parsed.reasoning, "text": parsed.content})


async def _read(service: Service, text: str, reading: Reading) -> Parsed:
    if len(text) > MAX_TEXT_CHARS:
        raise RequestError(f"text has {len(text)} characters; at most {MAX_TEXT_CHARS} are allowed.", param="text")
    return await service.manager.prompts.off_loop(len(text), partial(parse, text, reading))
