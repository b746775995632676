"""Whatever is sent to the Anthropic routes is answered, or refused in their words: never a fault of ours."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.asgi import post, run
from tests.support.engine import Entry
from tests.unit.entry.anthropic.harness import COUNT, PATH, error_of

leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
rubbish = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
kinds = st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image"])
ids = st.sampled_from(["a", "b"])
block = rubbish | st.fixed_dictionaries(
    {"type": kinds | rubbish},
    optional={
        "text": st.text(max_size=5) | rubbish,
        "thinking": st.text(max_size=5) | rubbish,
        "id": ids | rubbish,
        "tool_use_id": ids | rubbish,
        "name": st.just("f") | rubbish,
        "input": st.just({}) | rubbish,
        "content": st.text(max_size=5) | st.lists(st.just({"type": "text", "text": "x"}), max_size=2) | rubbish,
        "cache_control": rubbish,
        "is_error": rubbish,
    },
)
content = st.text(max_size=5) | st.lists(block, max_size=4) | rubbish
message = rubbish | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | rubbish, "content": content}, optional={"name": rubbish}
)
body = st.fixed_dictionaries(
    {"messages": st.lists(message, max_size=4) | rubbish, "max_tokens": st.integers(-1, 10) | rubbish},
    optional={
        **dict.fromkeys(("temperature", "top_p", "top_k", "seed", "stop_sequences", "model", "tools", "thinking"), rubbish),
        **dict.fromkeys(("rid", "timeout", "priority", "cache_salt", "metadata", "chat_template_kwargs", "extra"), rubbish),
        "system": content,
        "stream": st.booleans() | rubbish,
    },
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([PATH, COUNT]), body)
def test_any_body_is_answered_or_refused(path: str, sent: dict[str, Any]) -> None:
    async def scenario() -> None:
        entry = Entry()
        if path == COUNT:
            sent.pop("max_tokens", None)
        response = await post(entry.app, path, json.dumps(sent).encode())
        if response.status != 200:
            assert 400 <= response.status < 500, response.content
            assert error_of(response)["type"] in ("invalid_request_error", "not_found_error")
        assert entry.manager.live_requests == 0

    run(scenario())
