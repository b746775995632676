"""`millstream chat` in a real terminal: typed to through a pseudo terminal, with real key presses."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import selectors
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sse_server import deltas, openai_stand_in

LIMIT_S = 60.0


def own_terminal() -> None:
    """In the child: standard input becomes what its Ctrl-C comes from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """The other end of the program's terminal."""

    def __init__(self, *arguments: str, home: Path) -> None:
        self._end, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "HOME": str(home), "XDG_STATE_HOME": str(home)}  # noqa: TID251
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millstream", "chat", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=own_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Until `pattern` has been shown since the last wait."""
        deadline = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            while (found := re.search(pattern, self.seen)) is None:
                assert selector.select(max(0.0, deadline - time.monotonic())), f"no {pattern!r} in {self.seen!r}"
                self.seen += os.read(self._end, 65536).decode(errors="replace")
        self.seen = self.seen[found.end() :]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.mark.long
def test_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    go_on = threading.Event()

    def answer(body: dict[str, Any]) -> Iterator[Any]:
        if body["messages"][-1]["content"] == "wait":
            yield deltas("Only **half**")[0]
            go_on.wait(LIMIT_S)
        else:
            yield from deltas("The **whole** of it.")

    with openai_stand_in(answer) as server:
        terminal = Terminal("--url", server.url, home=tmp_path)
        try:
            terminal.wait_for("> ")
            terminal.type("wait\r")
            terminal.wait_for("half")
            terminal.type("\x03")  # Ctrl-C
            terminal.wait_for(r"\[stopped\]")
            terminal.wait_for("> ")
            terminal.type("go\r")
            terminal.wait_for(r"\x1b\[1mwhole")  # bold, not asterisks
            terminal.wait_for("> ")
            terminal.type("/quit\r")
            assert terminal.process.wait(LIMIT_S) == 0
        finally:
            go_on.set()
            terminal.close()
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "Only **half**"}
    assert (tmp_path / "millstream" / "chat_history").read_text().split() == ["wait", "go", "/quit"]
