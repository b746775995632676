"""GrammarChecker: what compiles, where a schema is wrong, and what a grammar may cost before it is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream.errors import RequestError
from millstream.grammar.checker import GrammarChecker
from millstream.grammar.limits import MAX_SOURCE_BYTES
from millstream.grammar.vocabulary import Vocabulary, vocabulary_of
from millstream.messages.grammar import GrammarKind, GrammarSpec
from millstream.text.tokenizer import load_scripted_tokenizer

TOKENIZER = load_scripted_tokenizer()


def vocabulary() -> Vocabulary:
    return vocabulary_of(TOKENIZER, TOKENIZER.eos_token_ids)


@asynccontextmanager
async def open_checker(compile_s: float = 30.0) -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker(vocabulary, compile_s=compile_s)
    try:
        yield checker
    finally:
        checker.close()


def schema_spec(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema), "schema")


async def error_of(checker: GrammarChecker, spec: GrammarSpec) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await checker.check(spec)
    return caught.value


def nested(part: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": [{"type": "null"}, part]}}}}


def wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"k{number}": {"type": "integer"} for number in range(count)}}


REFERS = {"$ref": "#/$defs/n"}
TAG = {"begin": "<a>"}
BAD: list[tuple[GrammarKind, str, str, str]] = [
    ("json_schema", "{", "", "JSON"),
    ("json_schema", "[]", "", "object"),
    ("json_schema", "false", "", "object"),
    ("json_schema", json.dumps({"type": "sting"}), "", "sting"),
    ("json_schema", json.dumps(nested({"type": "sting"})), ".properties.a.items.anyOf[1]", "sting"),
    ("json_schema", json.dumps(nested({"type": "array", "uniqueItems": True})), ".properties.a.items.anyOf[1]", "uniqueItems"),
    ("json_schema", json.dumps(nested({"type": "string", "pattern": "(("})), ".properties.a.items.anyOf[1]", "unclosed"),
    ("json_schema", json.dumps({"type": "object", "not": {"type": "null"}}), "", "not"),
    ("json_schema", json.dumps({"type": "integer", "minimum": 5, "maximum": 3}), "", "minimum"),
    ("json_schema", json.dumps({"$ref": "http://localhost/x"}), "", "http://localhost/x"),
    ("json_schema", json.dumps({"$ref": "#"}), "", "no text"),
    (
        "json_schema",
        json.dumps({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "string", "format": "odd"}}}}} | REFERS),
        ".$defs.n.properties.v",
        "odd",
    ),
    ("json_schema", json.dumps(nested(wide(600))), ".properties.a.items.anyOf[1]", "too wide"),
    ("json_schema", json.dumps({"anyOf": [wide(100)] * 6}), "", "too wide"),
    ("json_schema", json.dumps({"properties": {"x" * 2_000: {}}}), "", "characters"),
    ("json_schema", json.dumps(nested({"maxLength": 100_000})), ".properties.a.items.anyOf[1].maxLength", "bounded"),
    ("json_schema", json.dumps({"type": "object", "minProperties": 2}), ".minProperties", "one name"),
    ("json_schema", r'{"const": "\ud800"}', "", "JSON"),
    ("json_schema", '{"minimum": NaN}', "", "number"),
    ("json_schema", '{"maximum": 1e999}', "", "number"),
    ("regex", "(a", "", "unclosed"),
    ("regex", r"(a)\1", "", "backreferences"),
    ("regex", "(?=a)b", "", "look-around"),
    ("ebnf", "start: nobody", "", "nobody"),
    ("ebnf", 'root ::= "a" | (', "", "line 1"),
    ("choice", "[]", "", "list of strings"),
    ("choice", '["a", ""]', "", "list of strings"),
    ("structural_tag", "{}", "", "structural_tag"),
    ("structural_tag", json.dumps({"structures": [], "triggers": []}), ".structures", "list"),
    ("structural_tag", json.dumps({"structures": [TAG], "triggers": ["<b"]}), ".structures[0].begin", "trigger"),
    ("structural_tag", json.dumps({"structures": [TAG | {"schema": 5}], "triggers": ["<"]}), ".structures[0].schema", "object"),
]  # fmt: skip


def test_what_is_wrong_with_a_grammar_is_said_with_its_place() -> None:
    async def scenario() -> None:
        async with open_checker() as checker:
            for kind, source, place, words in BAD:
                error = await error_of(checker, GrammarSpec(kind, source, "field"))
                assert (error.param, error.status) == (f"field{place}", 400), (source, error.message)
                assert words in error.message, (source, error.message)

    asyncio.run(scenario())


def test_grammars_of_every_kind_compile_and_are_compiled_once() -> None:
    async def scenario() -> None:
        tag = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f"]}
        specs = [
            GrammarSpec("json_object"),
            schema_spec(nested({"type": "integer", "minimum": 3})),
            GrammarSpec("regex", "a/b+"),
            GrammarSpec("ebnf", 'root ::= "yes" | "no" x\nx ::= [0-9]+'),
            GrammarSpec("ebnf", 'start: "yes" | "no" /[0-9]+/'),
            GrammarSpec("choice", json.dumps(["ja", 'n"ein\n', "ü"])),
            GrammarSpec("structural_tag", json.dumps(tag)),
        ]
        async with open_checker() as checker:
            checked = [await checker.check(spec) for spec in specs]
            assert all(each.checked for each in checked)
            together = await asyncio.gather(*(checker.check(spec) for spec in specs))
            assert together == checked

    asyncio.run(scenario())


def chain(length: int) -> dict[str, Any]:
    """Definitions that refer to one another: what overflows the stack of the library."""
    links: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": {**links, f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def deep(depth: int) -> str:
    return '{"items":' * depth + "true" + "}" * depth


BOMBS: list[Callable[[], str]] = [
    lambda: json.dumps(chain(5000)),
    lambda: deep(20_000),
    lambda: json.dumps({"enum": [f"{i * 7919 % 99991}" for i in range(20_000)]}),
    lambda: json.dumps({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(8)]} for i in range(8)]}),
    lambda: json.dumps({"type": "string", "pattern": "^((((a|b){1,999}c){1,999}d){1,999})$"}),
    lambda: json.dumps({"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}}),
]


def test_a_bomb_is_refused_or_harmless_and_the_next_grammar_compiles() -> None:
    async def scenario() -> None:
        async with open_checker() as checker:
            refused = 0
            for make in BOMBS:
                try:
                    await checker.check(GrammarSpec("json_schema", make(), "schema"))
                except RequestError as error:
                    refused += error.param is not None and error.param.startswith("schema")
                assert (await checker.check(schema_spec({"type": "integer"}))).checked
            assert refused >= 2

    asyncio.run(scenario())


def test_a_grammar_that_takes_too_long_is_refused_and_does_not_keep_others_waiting() -> None:
    slow = GrammarSpec("regex", "|".join(f"[a-z]{{1,{n}}}x{n}" for n in range(1, 3000)), "regex")

    async def scenario() -> None:
        async with open_checker(compile_s=0.001) as checker:
            error = await error_of(checker, slow)
            assert "too deep or too large" in error.message

    asyncio.run(scenario())


def test_a_worker_that_died_is_replaced_and_what_it_died_of_is_not_held_against_a_grammar() -> None:
    async def scenario() -> None:
        async with open_checker() as checker:
            spec = schema_spec({"type": "integer"})
            await checker.check(spec)
            worker = checker._idle.queue[-1]
            worker._process.kill()
            worker._process.wait()
            assert (await checker.check(schema_spec({"type": "null"}))).checked
            checker._idle.queue[-1]._process.kill()  # it may be dead now, or while it is asked
            assert (await checker.check(schema_spec({"type": "boolean"}))).checked
            checker._compile_s = 0.0001
            other = schema_spec({"enum": list(range(5_000))})
            assert "too deep or too large" in (await error_of(checker, other)).message
            checker._compile_s = 30.0
            assert (await checker.check(other)).checked

    asyncio.run(scenario())


def test_a_source_beyond_the_limit_is_not_even_compiled() -> None:
    async def scenario() -> None:
        async with open_checker() as checker:
            error = await error_of(checker, GrammarSpec("regex", "a" * (MAX_SOURCE_BYTES + 1), "regex"))
            assert str(MAX_SOURCE_BYTES) in error.message

    asyncio.run(scenario())
