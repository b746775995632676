"""A sample of the Berkeley Function-Calling Leaderboard's conversations: every enforced call is complete and of its schema."""

from __future__ import annotations

import pytest

from benchmarks.schemas.functions import SUITE, conversations, measure
from tests.clients.test_other_clients import PROGRAMS
from tests.support.server import running_server

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
def test_every_finished_call_is_of_a_tool_that_was_offered_and_follows_its_schema() -> None:
    if not SUITE.is_dir():
        pytest.skip(f"{SUITE} is not there: `make packages` fetches it where PyPI can be reached")
    bodies = list(conversations(6))
    with running_server("--chat-template", str(PROGRAMS / "tools.jinja")) as url:
        verdicts = measure(url, bodies, max_tokens=200)
    assert len(verdicts) == len(bodies)
    assert set(verdicts) <= {"valid", "length"}
    assert verdicts.count("valid") >= len(bodies) // 2
