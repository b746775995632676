"""The embedded model's tokenizer, loaded once for all tests of text."""

from __future__ import annotations

import pytest

from millstream.checkpoint.locate import resolve_model
from millstream.errors import StartupError
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def embedded() -> Tokenizer:
    try:
        source = resolve_model("embedded")
    except StartupError as error:
        pytest.skip(f"{error} ({error.hint})")
    return load_tokenizer(source)


@pytest.fixture(scope="session")
def scripted() -> Tokenizer:
    return load_scripted_tokenizer()
