"""The official JSON Schema Test Suite, asked of our grammars: which schemas they follow, and what they then allow.

A grammar writes the members of an object in one order, so an instance is allowed if it is in any order of its members.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from llguidance import LLMatcher, LLTokenizer

from millstream.grammar.limits import parser_limits
from millstream.grammar.vocabulary import Vocabulary
from millstream.grammar.worker import Prover
from millstream.messages.grammar import GrammarSpec

MAX_ORDERS = 720  # of the members of one instance


class Case(NamedTuple):
    """One instance of the suite under one schema."""

    name: str
    instance: Any
    is_valid: bool


@dataclass
class Figures:
    """What came of a part of the suite. Instances of schemas that were refused are not counted."""

    followed: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # schema: why
    allowed: int = 0  # valid, and allowed
    forbidden: int = 0  # invalid, and not allowed
    too_strict: list[str] = field(default_factory=list)  # valid, and not allowed
    too_lax: list[str] = field(default_factory=list)  # invalid, and allowed


def groups(directory: Path) -> Iterator[tuple[str, Any, list[Case]]]:
    """The schemas of one draft by name, with the instances that are tried under each."""
    for path in sorted(directory.glob("*.json")):
        for group in json.loads(path.read_text()):
            name = f"{path.stem}: {group['description']}"
            cases = [Case(f"{name}: {each['description']}", each["data"], each["valid"]) for each in group["tests"]]
            yield name, group["schema"], cases


def ask(directory: Path, vocabulary: Vocabulary) -> Figures:
    """Try all instances of a draft."""
    prover = Prover(vocabulary)
    tokenizer = vocabulary.compiled()
    figures = Figures()
    for name, schema, cases in groups(directory):
        proof = prover.prove(GrammarSpec("json_schema", json.dumps(schema)))
        if proof.error:
            figures.refused[name] = proof.error
            continue
        figures.followed += 1
        for case in cases:
            is_allowed = any(_allows(proof.grammar, tokenizer, text) for text in texts_of(case.instance))
            if case.is_valid:
                figures.allowed += is_allowed
                figures.too_strict += [] if is_allowed else [case.name]
            else:
                figures.forbidden += not is_allowed
                figures.too_lax += [case.name] if is_allowed else []
    return figures


def texts_of(instance: Any) -> Iterator[str]:
    """An instance as JSON, with the members of its objects in all orders, as far as they are few."""
    for ordered in itertools.islice(_orders(instance), MAX_ORDERS):
        yield json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(_orders(value[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    elif isinstance(value, list):
        for items in itertools.product(*(list(_orders(item)) for item in value)):
            yield list(items)
    else:
        yield value


def _allows(grammar: str, tokenizer: LLTokenizer, text: str) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    ids = tokenizer.tokenize_bytes(text.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
