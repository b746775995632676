"""The phases of a process: a table, and no move that is not in it."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from millstream.errors import InvariantError
from millstream.ipc.control import ControlLink
from millstream.launch.spawn import NEXT, Child
from millstream.messages import ChildError, ToSupervisor


@pytest.fixture
def child() -> Iterator[Child]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    child = Child(kind="entry", name="entry-4", process=process, link=ControlLink(ours, ToSupervisor))
    yield child
    process.communicate()
    ours.close()
    theirs.close()


@pytest.mark.parametrize(("start", "end"), [*itertools.product(NEXT, NEXT)])
def test_only_listed_moves_are_made(child: Child, start: str, end: str) -> None:
    child.phase = start  # type: ignore[assignment]
    if end in NEXT[child.phase]:
        child.move(end)  # type: ignore[arg-type]
        assert child.phase == end
    else:
        with pytest.raises(InvariantError, match="entry-4"):
            child.move(end)  # type: ignore[arg-type]
        assert child.phase == start


def test_what_is_over_has_no_way_back_and_failure_is_open_to_all_others() -> None:
    for phase, following in NEXT.items():
        assert ("FAILED" in following) is (phase not in ("STOPPED", "FAILED"))


def test_one_that_does_not_end_is_killed_and_reaped(child: Child) -> None:
    child.reap(grace_s=0.01)
    assert child.describe_death() == "the entry-4 process ended (killed by SIGKILL)"


def test_its_own_words_come_first(child: Child) -> None:
    child.error = ChildError(process="entry", message="no such file")
    assert child.describe_death() == "entry-4: no such file"
