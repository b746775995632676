"""`millstream ledger` and `doctor` against a server with keys: an admin's key opens it, others do not, and none is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.chat import script
from tests.support.server import Server

USER, ADMIN = "a-user-key", "an-admin-key"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a key for users and one, from a file, for admins."""
    keys = tmp_path_factory.mktemp("keys") / "admin"
    keys.write_text(f"# who may look\n{ADMIN}\n")
    options = ("--executor", "scripted", "--script", "inline", "--api-key", USER, "--admin-api-key-file", str(keys))
    with Server(*options) as server:
        yield server.wait_ready()
        assert server.stop() == 0
        assert USER not in server.log() + server.output
        assert ADMIN not in server.log() + server.output


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "millstream", *arguments], capture_output=True, text=True, check=False)


def test_an_admin_s_key_shows_what_a_running_request_holds(url: str) -> None:
    body = {"messages": script(" word", step_ms=5, finish="length"), "stream": True, "max_tokens": 3000, "rid": "long"}
    headers = {"Authorization": f"Bearer {USER}"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60) as response:
        lines = response.iter_lines()
        while "word" not in next(lines):
            pass
        shown = command("ledger", "--url", url, "--api-key", ADMIN, "--rid", "long", "--json")
        assert shown.returncode == 0, shown.stderr
        assert {each["rid"] for each in json.loads(shown.stdout)["held"]} == {"long"}
        checked = command("doctor", "--url", url, "--admin-api-key", ADMIN)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_key_may_come_from_a_file_or_beside_a_user_s(url: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(ADMIN + "\n")
    for keys in (("--admin-api-key-file", str(file)), ("--api-key", USER, "--admin-api-key", ADMIN)):
        checked = command("doctor", "--url", url, *keys, "--json")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert json.loads(checked.stdout)["ok"]


@pytest.mark.parametrize("keys", [(), ("--api-key", USER), ("--api-key", "wrong")], ids=["none", "a user's", "wrong"])
def test_without_an_admin_s_key_both_say_that_they_may_not(url: str, keys: tuple[str, ...]) -> None:
    refused = command("ledger", "--url", url, *keys)
    assert (refused.returncode, refused.stdout) == (1, "")
    status = "403" if USER in keys else "401"
    assert f"/debug/ledger at {url} answers {status}" in refused.stderr
    checked = command("doctor", "--url", url, *keys)
    assert checked.returncode == 1
    assert f"answers {status}" in checked.stdout + checked.stderr
    for key in keys[1:]:
        assert key not in refused.stderr + checked.stdout + checked.stderr
