"""The official JSON Schema Test Suite: no grammar lets through what its schema does not allow, and the share we follow stays."""

from __future__ import annotations

import pytest

from benchmarks.schemas.suite import SUITE, measure


@pytest.mark.parametrize(("draft", "share"), [("draft2020-12", 0.43), ("draft7", 0.6)])
def test_no_invalid_instance_is_allowed(draft: str, share: float) -> None:
    if not SUITE.is_dir():
        pytest.skip(f"{SUITE} is not there: `make packages` fetches it where PyPI can be reached")
    outcome = measure(draft)
    assert not outcome.wrong
    assert outcome.num_invalid > 200
    assert outcome.num_followed >= share * outcome.num_schemas
    assert outcome.num_valid_allowed >= 0.9 * outcome.num_valid
