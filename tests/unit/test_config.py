"""Options: what cannot work is refused before a process starts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from millstream.config import GROUPS, ServerConfig
from millstream.errors import StartupError


def test_the_defaults_work() -> None:
    ServerConfig().check()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"port": 70000}, "port"),
        ({"page_size": 0}, "page_size"),
        ({"max_running_requests": 0}, "max_running_requests"),
        ({"drain_timeout_s": float("nan")}, "drain_timeout_s"),
        ({"context_length": 1}, "context_length"),
        ({"max_queued_tokens": 0}, "max_queued_tokens"),
        ({"max_live_requests": 0}, "max_live_requests"),
        ({"max_connections": 0}, "max_connections"),
        ({"request_timeout_s": 0.0}, "request_timeout_s"),
        ({"max_body_bytes": 4096, "max_held_body_bytes": 2048}, "max_held_body_bytes"),
        ({"speculative_num_draft_tokens": 0}, "speculative_num_draft_tokens"),
        ({"speculative_ngram_min_match_window_size": 9}, "speculative_ngram_max_match_window_size is 8"),
        ({"api_key": ("ok", "")}, "api_key"),
        ({"admin_api_key": ("two words",)}, "admin_api_key"),
        ({"allowed_origins": ("page",)}, "allowed_origins"),
        ({"chunked_prefill_size": 64, "max_running_requests": 64}, "chunked_prefill_size"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(StartupError, match=name):
        ServerConfig(**values).check()


def test_every_option_is_in_one_group_and_every_group_has_a_title() -> None:
    grouped = [option.name for group in GROUPS for option in dataclasses.fields(group)]
    assert sorted(grouped) == sorted(option.name for option in dataclasses.fields(ServerConfig))
    assert len(set(grouped)) == len(grouped)
    assert all((group.__doc__ or "")[0].isupper() for group in GROUPS)
