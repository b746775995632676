"""Published tokenizers, as `make test` fetched them into the virtual environment."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest

from millstream.text.huggingface_tokenizer import read_huggingface_tokenizer
from millstream.text.tokenizer import Tokenizer

DIRECTORY = Path(sys.prefix) / "tokenizers"
PINS = Path(__file__).parent.parent / "data" / "tokenizers.json"
PUBLISHED_NAMES = [pin["name"] for pin in json.loads(PINS.read_text())]


@functools.cache
def published(name: str) -> Tokenizer:
    """One of `tests/data/tokenizers.json`; the test is skipped where it is not there."""
    directory = DIRECTORY / name
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there: `make test` fetches it where npm is installed")
    return Tokenizer(read_huggingface_tokenizer(directory))
