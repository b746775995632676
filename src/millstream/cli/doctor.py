"""`millstream doctor` of a running server: whether it is clean. `preflight` looks where none runs.

Every check says what it found, and where it failed, what to do about it. None of them changes anything.
"""

from __future__ import annotations

import time
from typing import Any

from millstream.cli.checks import Check, look
from millstream.cli.client import fetch, fetch_ok
from millstream.errors import StartupError

REST_S = 3.0  # what a request that has just ended gets to leave every process
LOOK_S = 0.1  # between two looks
SHOWN = 5


def check_server(url: str, key: str | None = None) -> list[Check]:
    """Whether the server at `url` is ready, holds nothing for requests that are over, and never sent wrong text.

    `key` is an API key that opens the admin routes, where the server asks for one.

    Raises:
        Unreachable: nobody answers there.
    """
    fetch(url, "/health", key)  # is anybody there at all
    ready = look("ready", lambda: _processes(fetch_ok(url, "/server_info", key)))
    if not ready.ok:
        return [ready]
    return [ready, look("ledger", lambda: _ledger(url, key)), look("text", lambda: _text(fetch_ok(url, "/server_info", key)))]


def _processes(info: dict[str, Any]) -> str:
    processes = ", ".join(f"{name} {process['pid']}" for name, process in info["processes"].items())
    return f"Millstream {info['version']} serves {info['model']}: {processes}"


def _text(info: dict[str, Any]) -> str:
    wrong = info["stream_mismatch_total"]
    if wrong:
        raise StartupError(f"{wrong} answers were not the text of their tokens.", hint="this is a bug; the log names them")
    return "every answer was the text of its tokens"


def _ledger(url: str, key: str | None) -> str:
    """Look until nothing is held that belongs to no live request, or for `REST_S`: an end takes a moment to reach everybody."""
    deadline = time.monotonic() + REST_S
    while True:
        found = fetch_ok(url, "/debug/ledger", key)
        if found["mismatches"]:
            raise StartupError(
                f"the ledger did not balance {found['mismatches']} times.", hint="this is a bug; the log says what was amiss"
            )
        orphans = _orphans(found)
        if not orphans:
            if not found["held"]:
                return "nothing is held"
            return f"{found['totals'].get('state', 0)} requests are live, and the engine holds nothing for any other"
        if time.monotonic() >= deadline:
            some = ", ".join(f"{each['kind']} of {each['rid'] or '-'} in the {each['process']}" for each in orphans[:SHOWN])
            raise StartupError(
                f"{len(orphans)} things are held for requests that are not live: {some}.", hint=f"millstream ledger --url {url}"
            )
        time.sleep(LOOK_S)


def _orphans(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries of scheduler and detokenizer for a request that the entry does not know; of a list cut short none is known.

    What the entry holds beside the state may outlive it, rightly: a client reads the rest of its answer, a worker ends its job.
    """
    if found["left_out"]:
        return []
    live = {each["rid"] for each in found["held"] if each["kind"] == "state"}
    return [each for each in found["held"] if not each["process"].startswith("entry") and each["rid"] not in live]
