"""A DetokenizerManager that sends to a list; every test runs with rows and with columns."""

from __future__ import annotations

import pytest

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.observe.ledger import Ledger
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer
from tests.unit.detokenizer.harness import Outbox, Wire


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_scripted_tokenizer()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def manager(tokenizer: Tokenizer, outbox: Outbox) -> DetokenizerManager:
    return DetokenizerManager(
        tokenizer=tokenizer, to_entry=lambda entry: outbox, ledger=Ledger("detokenizer", strict=True), clock=lambda: 5.0
    )


@pytest.fixture(params=["rows", "columns"], autouse=True)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wire, "columns", request.param == "columns")
