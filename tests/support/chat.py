"""Chat requests against a scripted server, plain and streamed, as one kind of result."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.sse import Event, finish_reasons, joined_content, parse_events


@dataclass
class Result:
    """What a client got."""

    status: int
    body: Any = None
    events: list[Event] = field(default_factory=list)
    content: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the envelope."""
        error: dict[str, Any] = self.body["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"]
        return error


def script(*pieces: Any, **more: Any) -> list[dict[str, str]]:
    """Messages whose answer is scripted."""
    return [{"role": "user", "content": "<script>" + json.dumps({"pieces": list(pieces), **more}) + "</script>"}]


def ask(url: str, body: dict[str, Any], *, path: str = "/v1/chat/completions") -> Result:
    """Send one plain request."""
    response = httpx.post(url + path, json=body, timeout=60)
    result = Result(response.status_code, response.json())
    if response.status_code == 200:
        choice = result.body["choices"][0]
        result.content = choice["message"]["content"] if "message" in choice else choice["text"]
        result.finish_reason, result.usage = choice["finish_reason"], result.body["usage"]
    return result


def ask_streamed(url: str, body: dict[str, Any], *, path: str = "/v1/chat/completions") -> Result:
    """Send one streamed request and read it to its end."""
    response = httpx.post(url + path, json={**body, "stream": True}, timeout=60)
    result = Result(response.status_code)
    if response.status_code != 200:
        result.body = response.json()
        return result
    assert response.headers["content-type"].startswith("text/event-stream")
    result.events = parse_events(response.content)
    result.content = joined_content(result.events)
    reasons = finish_reasons(result.events)
    result.finish_reason = reasons[-1] if reasons else None
    result.usage = next((e.data["usage"] for e in result.events if e.data != "[DONE]" and e.data.get("usage")), None)
    return result


def ask_both(url: str, body: dict[str, Any]) -> list[Result]:
    """The same request plain and streamed (with usage)."""
    return [ask(url, body), ask_streamed(url, {**body, "stream_options": {"include_usage": True}})]


def assert_serves(url: str) -> None:
    """The canary: a normal small request succeeds, and no process remembers an earlier one."""
    result = ask(url, {"messages": script("fine")})
    assert (result.status, result.content) == (200, "fine")
    info = httpx.get(f"{url}/server_info", timeout=30).json()
    assert info["live_requests"] == 0, info
    assert info["stream_mismatch_total"] == 0, info
