"""The entry's encoder becomes the fast one while the server runs, and the ids stay what they were."""

from __future__ import annotations

import time

import httpx
import pytest

from millstream.text.tokenizer import load_scripted_tokenizer, scripted_text
from tests.support.server import server_info

DEADLINE_S = 60.0


def test_a_running_server_encodes_with_the_proven_library(scripted_server: str) -> None:
    pytest.importorskip("fastokens")
    deadline = time.monotonic() + DEADLINE_S
    while server_info(scripted_server)["text_encoder"] != "fastokens":  # each look is a round trip through all processes
        assert time.monotonic() < deadline
    answer = httpx.post(f"{scripted_server}/tokenize", json={"prompt": scripted_text()}).raise_for_status().json()
    assert answer["tokens"] == load_scripted_tokenizer().encode(scripted_text())
