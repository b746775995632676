"""Grammars on the embedded model through the scheduler: not a token depends on the company, on chunks or on jumps."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from millstream.checkpoint.locate import configured_source
from millstream.config import ServerConfig
from millstream.execution.native.executor import NativeExecutor
from millstream.grammar.matcher import GrammarCompiler
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import vocabulary_of
from millstream.messages.grammar import GrammarSpec
from millstream.text.tokenizer import Tokenizer, load_configured_tokenizer
from tests.unit.scheduler.harness import Desk, assert_nothing_held
from tests.unit.scheduler.test_grammars import finish

ITEM = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "number": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["colour", "number"],
    "additionalProperties": False,
}
SCHEMA = json.dumps({"type": "array", "items": ITEM, "minItems": 2, "maxItems": 2})
GRAMMAR = GrammarSpec("json_schema", SCHEMA, "field", convert(GrammarSpec("json_schema", SCHEMA)))
PROMPT = random.Random(3).choices(range(5, 49000), k=40)
HOW: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = ServerConfig()
    return load_configured_tokenizer(config, configured_source(config))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(vocabulary_of(tokenizer, tokenizer.eos_token_ids))


def submit(at: Desk, number: int, **how: Any) -> None:
    at.submit(f"r{number}", PROMPT[: 30 + number], max_new=80, seed=11 + number, grammar=GRAMMAR, **how)


@pytest.fixture(scope="module")
def alone(native_embedded: NativeExecutor, compiler: GrammarCompiler) -> list[list[int]]:
    """Each on a scheduler of its own, token by token."""
    made = []
    for number, how in enumerate(HOW):
        at = Desk(native_embedded, grammars=compiler, jumps_forward=False, context_length=256)
        submit(at, number, **how)
        finish(at)
        made.append(at.tokens(f"r{number}"))
    return made


def test_every_answer_is_what_its_schema_says(alone: list[list[int]], tokenizer: Tokenizer) -> None:
    for token_ids in alone:
        answer = json.loads(tokenizer.decode(token_ids))
        assert [set(item) for item in answer] == [{"colour", "number"}] * 2


@pytest.mark.parametrize("jumps", [False, True], ids=["drawn", "jumps"])
@pytest.mark.parametrize("chunk", [7, 256])
def test_company_chunks_and_jumps_change_no_token(
    native_embedded: NativeExecutor, compiler: GrammarCompiler, alone: list[list[int]], chunk: int, jumps: bool
) -> None:
    at = Desk(native_embedded, grammars=compiler, jumps_forward=jumps, chunked_prefill_size=chunk, context_length=256)
    at.submit("free", PROMPT, max_new=30, temperature=0.8, ignore_eos=True)
    for number, how in enumerate(HOW):
        submit(at, number, **how)
    finish(at)
    assert [at.tokens(f"r{number}") for number in range(len(HOW))] == alone
    assert (at.stats().forced_tokens > 0) == jumps
    assert_nothing_held(at)
