"""Published tokenizers, as `make test` fetched them into the virtual environment."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest

from millstream.text.huggingface_tokenizer import read_huggingface_tokenizer
from millstream.text.tokenizer import Tokenizer
from tests.support.tekken import tekken_tokenizer

DIRECTORY = Path(sys.prefix) / "tokenizers"
TEKKEN_FILE = "tekken_240911.json"
PINS = Path(__file__).parent.parent / "data" / "tokenizers.json"
PUBLISHED_NAMES = [pin["name"] for pin in json.loads(PINS.read_text())]


def published_directory(name: str) -> Path:
    """Where its files are; the test is skipped where they are not there."""
    directory = DIRECTORY / name
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there: `make test` fetches it where the registries (for most, npm) can be reached")
    return directory


@functools.cache
def published(name: str) -> Tokenizer:
    """One of `tests/data/tokenizers.json`; the test is skipped where it is not there."""
    directory = published_directory(name)
    if name == "tekken":
        return tekken_tokenizer(directory / TEKKEN_FILE)
    return Tokenizer(read_huggingface_tokenizer(directory))
