"""`millstream trace`: one request against a running server, and the way it took: each station, what arrived there, and when."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from millstream.cli.client import ServerError, fetch, fetch_ok
from millstream.cli.remote import Remote, command_app
from millstream.errors import StartupError

END_WAIT_S = 5.0  # the server keeps the record when its client has the last byte, which is a moment later
POLL_S = 0.02
MAX_DELTAS = 16  # that are shown one by one
SHOWN_CHARS = 60
EXAMPLES = """
millstream trace "What is a radix tree?"
millstream trace "Hello" --max-tokens 8 --json
millstream trace "Hello" --perfetto trace.json
"""
# what each stage makes, and of what
_STATIONS = {
    "template": ("ChatCompletionRequest", "GenerateReqInput"),
    "tokenize": ("GenerateReqInput", "TokenizedGenerateReqInput"),
    "grammar": ("GrammarSpec", "GrammarSpec, proven"),
    "send": ("TokenizedGenerateReqInput", "Req"),
    "queue": ("Req, WAITING", "Req, RUNNING"),
    "prefill": ("Req, RUNNING", "first token"),
    "decode": ("Req, RUNNING", "BatchTokenIDOutput"),
    "detokenize": ("BatchTokenIDOutput", "BatchStrOutput"),
    "write": ("BatchStrOutput", "ChatCompletionChunk, SSE"),
}


class Delta(NamedTuple):
    """A piece of the answer as it arrived, in milliseconds from the sending of the request."""

    at_ms: float
    text: str


class Seen(NamedTuple):
    """What the client saw."""

    answer_id: str
    deltas: list[Delta]
    total_ms: float


def trace(
    prompt: str,
    /,
    *,
    remote: Remote | None = None,
    max_tokens: int = 32,
    temperature: float | None = None,
    perfetto: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
) -> int:
    """Send one chat request to a running Millstream server and show the way it took: stations, objects, tokens, text, times.

    Exits with 0; 1: no server answers, it failed or refused, or knows no timelines; 2: wrong arguments.

    Parameters
    ----------
    prompt
        The user's message.
    max_tokens
        Tokens the answer may have.
    temperature
        How freely tokens are drawn; 0: always the likeliest.
    perfetto
        Also write the request as a file for Perfetto or chrome://tracing.
    as_json
        Print what was seen and what the server says, as JSON.
    """
    remote = remote or Remote()
    seen = _ask(remote, prompt, max_tokens, temperature)
    path = f"/v1/requests/{quote(seen.answer_id, safe='')}"
    request = _timeline(remote, path)
    if perfetto is not None:
        file = fetch_ok(remote.base, f"{path}?format=perfetto", remote.key)
        try:
            perfetto.write_bytes(msgspec.json.encode(file))
        except OSError as error:
            raise StartupError(f"`{perfetto}` cannot be written: {error.strerror}.") from None
    if as_json:
        made = {"request": request, "deltas": [delta._asdict() for delta in seen.deltas], "client_ms": seen.total_ms}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(walk(request, seen, prompt)) + "\n")
    return 0


def _ask(remote: Remote, prompt: str, max_tokens: int, temperature: float | None) -> Seen:
    body: dict[str, Any] = {
        "model": remote.model_name(),
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": True,
    }
    if temperature is not None:
        body["temperature"] = temperature
    deltas: list[Delta] = []
    answer_id = ""
    start = time.monotonic()
    with remote.stream("/v1/chat/completions", body) as events:
        for event in events:
            answer_id = str(event.get("id", "")) or answer_id
            text = "".join(_texts(event))
            if text:
                deltas.append(Delta(round((time.monotonic() - start) * 1000, 3), text))
    return Seen(answer_id, deltas, round((time.monotonic() - start) * 1000, 3))


def _texts(event: dict[str, Any]) -> Iterator[str]:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        for name in ("reasoning_content", "content"):
            if isinstance(delta.get(name), str):
                yield delta[name]


def _timeline(remote: Remote, path: str) -> dict[str, Any]:
    """What the server says of the request, once it has ended there, too.

    Raises:
        ServerError: it knows nothing of it.
    """
    give_up = time.monotonic() + END_WAIT_S
    while True:
        status, body = fetch(remote.base, path, remote.key)
        if status == 200 and body.get("state") == "ended":
            return body
        if time.monotonic() > give_up:
            if status == 200:
                return body
            raise ServerError(
                f"{remote.url} answered, and knows no timeline of it (status {status}).",
                http_status=status,
                hint="it must be a Millstream server with --max-recent-requests above 0",
            )
        time.sleep(POLL_S)


def walk(request: dict[str, Any], seen: Seen, prompt: str) -> list[str]:
    """The way of a request, for people, line by line."""
    lines = [
        f"request {seen.answer_id}  rid {request['rid']}  trace {request['trace_id']}",
        f"{request['api']}  {request['model']}  {request['prompt_tokens']} prompt tokens ({request['cached_tokens']} cached), "
        f"{request['completion_tokens']} new  ended by {request['cause']}",
        "",
        f"{'at ms':>9}  {'took':>9}  {'process':<11}  {'stage':<10}  from -> to",
    ]
    for stage in request["stages"]:
        source, target = _STATIONS.get(stage["name"], ("", ""))
        lines.append(
            f"{stage['start_ms']:9.2f}  {stage['duration_ms']:9.2f}  {stage['process']:<11}  {stage['name']:<10}  "
            f"{source} -> {target}{_note(stage['name'], request, prompt)}"
        )
    if request["waits"]:
        lines += ["", "it waited for"]
        lines += [f"{wait['start_ms']:9.2f}  {wait['duration_ms']:9.2f}  {wait['reason']}" for wait in request["waits"]]
    if request["ttft"]:
        parts = ", ".join(f"{name} {milliseconds:.2f}" for name, milliseconds in request["ttft"].items())
        lines += ["", f"first token after {request['ttft_ms']:.2f} ms: {parts}"]
    return [*lines, "", *_delta_lines(seen)]


def _note(stage: str, request: dict[str, Any], prompt: str) -> str:
    """What a station has to say beyond its name."""
    match stage:
        case "template":
            return f"  {_shown(prompt)}"
        case "tokenize":
            return f"  {request['prompt_tokens']} ids"
        case "queue" if request["cache"]:
            return (
                f"  cache: {request['cached_tokens']} tokens, {request['cache']['reason']} at {request['cache']['diverged_at']}"
            )
        case "decode":
            return f"  {request['completion_tokens']} ids"
        case _:
            return ""


def _delta_lines(seen: Seen) -> list[str]:
    lines = [f"what arrived here, {seen.total_ms:.2f} ms in all"]
    lines += [f"{delta.at_ms:9.2f}  {_shown(delta.text)}" for delta in seen.deltas[:MAX_DELTAS]]
    if more := seen.deltas[MAX_DELTAS:]:
        lines.append(f"{more[-1].at_ms:9.2f}  ... and {len(more)} more: {_shown(''.join(delta.text for delta in more))}")
    return lines


def _shown(text: str) -> str:
    """A text in one line, with nothing in it that a terminal would take for an order."""
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")


app = command_app("trace", trace, EXAMPLES)
