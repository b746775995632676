"""Clients that are not the Python `openai` package itself, as programs of their own: one answer, however it is fetched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NODE_CLIENT = Path(sys.prefix) / "clients" / "openai-node" / "package" / "index.mjs"
MODEL = "smollm2-135m-instruct"

pytestmark = pytest.mark.long


def run(*command: str) -> Any:
    """The JSON object that a program prints last."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # noqa: TID251  # it would ask the network otherwise
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_node_client_gets_one_answer_streamed_or_not_and_errors_of_the_right_class(model_server: str) -> None:
    if shutil.which("node") is None or not NODE_CLIENT.is_file():
        pytest.skip("node, or its client that `make test` fetches where npm can be reached, is not there")
    found = run("node", str(PROGRAMS / "openai_node.mjs"), model_server, NODE_CLIENT.as_uri())
    text, usage = found["plain"]["text"], found["plain"]["usage"]
    assert found["model"] == MODEL
    assert text
    assert found["streamed"]["text"] == found["helper"]["text"] == found["afterwards"] == text
    assert found["streamed"]["finish"] == [found["plain"]["finish"]]
    assert [each["total_tokens"] for each in found["streamed"]["usage"]] == [usage["total_tokens"]]
    assert found["completion"] == [[index, "length"] for index in range(4)]
    response = found["response"]
    assert found["responseStream"] == {"text": text, "last": "response.incomplete"}
    assert (response["text"], response["read"], response["status"], response["tokens"]) == (text, text, "incomplete", 24)
    assert response["next"] > usage["total_tokens"]
    assert found["embeddings"]["sizes"] == [576, 576]
    assert found["embeddings"]["gap"] < 1e-6
    assert found["noModel"] == {
        "is": {"NotFoundError": True, "BadRequestError": False},
        "status": 404,
        "code": "model_not_found",
        "param": "model",
        "type": "invalid_request_error",
        "requestId": found["noModel"]["requestId"],
    }
    assert found["badValue"]["is"] == {"NotFoundError": False, "BadRequestError": True}
    assert found["badValue"]["param"] == "temperature"
    ids = [found["requestId"], found["noModel"]["requestId"], found["badValue"]["requestId"]]
    assert all(ids)
    assert len(set(ids)) == 3


def test_langchain_gets_one_answer_however_it_asks(model_server: str) -> None:
    found = run(sys.executable, str(PROGRAMS / "langchain_chat.py"), model_server, MODEL)
    text = found["text"]
    assert text
    assert found["second_turn"]
    assert found["streamed"] == found["async"]["text"] == found["async"]["streamed"] == text
    assert found["async"]["batch"] == [text, text]
    assert found["finish"] == "length"
    assert found["usage"]["output_tokens"] == 24
    counts = ("input_tokens", "output_tokens", "total_tokens")
    assert [found["streamed_usage"][name] for name in counts] == [found["usage"][name] for name in counts]
    assert found["bad_value"]["status"] == 400
    assert found["bad_value"]["param"] == "temperature"
    assert found["bad_value"]["request_id"]


def test_litellm_as_a_client_gets_one_answer_and_errors_of_the_right_class(model_server: str) -> None:
    found = run(sys.executable, str(PROGRAMS / "litellm_chat.py"), model_server, MODEL)
    text = found["text"]
    assert text
    assert found["completion"]
    assert found["streamed"] == found["async"]["text"] == found["async"]["streamed"] == text
    assert found["streamed_finish"] == [found["finish"]] == ["length"]
    assert [each["total_tokens"] for each in found["streamed_usage"]] == [found["usage"]["total_tokens"]]
    assert found["bad_value"] == {"class": "BadRequestError", "status": 400}
    assert found["no_model"] == {"class": "NotFoundError", "status": 404}
