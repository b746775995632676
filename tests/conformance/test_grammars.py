"""Structured output of the embedded model and of scripts: every answer that is finished has the form it was to have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from millstream import Engine
from millstream.errors import RequestError
from tests.support.asgi import post, run
from tests.support.engine import Entry

COLOURS = ["red", "green", "dark blue", 'ü\n"']


def leaf(draw: random.Random) -> dict[str, Any]:
    """A schema of a value without parts."""
    low = draw.randint(-50, 50)
    return draw.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 200)},
            {"type": "integer", "exclusiveMinimum": low},
            {"type": "number", "minimum": 0, "maximum": 1},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": COLOURS[: draw.randint(1, 4)]},
            {"const": {"a": [1, None]}},
            {"type": "string", "maxLength": draw.randint(1, 12)},
            {"type": "string", "minLength": 2, "maxLength": 6},
            {"type": "string", "pattern": r"^[A-Z]{2}-\d{3,5}$"},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
            {"type": ["string", "null"], "maxLength": 5},
        ]
    )


def random_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of the kinds that people use."""
    kind = draw.choice(["object", "array", "anyOf", "tuple", "leaf", "map"] if depth < 2 else ["leaf"])
    if kind == "leaf":
        return leaf(draw)
    inner = [random_schema(draw, depth + 1) for _ in range(draw.randint(1, 3))]
    if kind == "object":
        names = draw.sample(["name", "größe", "名前", "a b", "id", "x/y", 'quo"te'], len(inner))
        required = names[: draw.randint(1, len(names))]
        return {
            "type": "object",
            "properties": dict(zip(names, inner, strict=True)),
            "required": required,
            "additionalProperties": False,
        }
    if kind == "array":
        least = draw.randint(0, 2)
        return {"type": "array", "items": inner[0], "minItems": least, "maxItems": least + draw.randint(0, 2)}
    if kind == "tuple":
        return {"type": "array", "prefixItems": inner, "items": False, "minItems": len(inner)}
    if kind == "map":
        return {"type": "object", "additionalProperties": inner[0], "minProperties": 1, "maxProperties": 2}
    return {"anyOf": inner}


RECURSIVE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}  # fmt: skip


@pytest.fixture(scope="module")
def scripted() -> Iterator[Engine]:
    with Engine(executor="scripted", script="inline", strict_ledger=True) as engine:
        yield engine


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_finished_answer_of_the_embedded_model_follows_its_schema() -> None:
    draw = random.Random(7)
    schemas = [RECURSIVE, *(random_schema(draw) for _ in range(99))]
    with Engine(strict_ledger=True) as engine:
        answers = engine.generate(
            ["Some JSON: "] * len(schemas),
            [
                {"json_schema": json.dumps(schema), "temperature": 1.0, "sampling_seed": number, "max_new_tokens": 160}
                for number, schema in enumerate(schemas)
            ],
        )
    num_finished = 0
    for schema, answer in zip(schemas, answers, strict=True):
        if answer["meta_info"]["finish_reason"]["type"] == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(answer["text"]), schema)
        else:
            assert answer["meta_info"]["finish_reason"]["type"] == "length"
    assert num_finished > 80


@pytest.mark.long
def test_greedy_and_penalised_answers_follow_their_grammars_and_have_the_raw_log_probabilities() -> None:
    with Engine(strict_ledger=True) as engine:
        for params in ({"temperature": 0}, {"frequency_penalty": 1.5, "repetition_penalty": 1.3}, {"top_k": 5}, {"top_p": 0.2}):
            answer = engine.generate(
                "Yes or no? ", {"regex": "(yes|no), [0-9]{2}", "max_new_tokens": 20, **params}, return_logprob=True
            )
            text = answer["text"]
            assert text[:-2] in ("yes, ", "no, ") and text[-2:].isdigit()
            told = [each[0] for each in answer["meta_info"]["output_token_logprobs"]]
            assert all(-60 < value <= 0 for value in told)


def test_a_script_says_what_its_grammar_allows(scripted: Engine) -> None:
    answer = scripted.generate("go", {"regex": "[a-z]{5}[0-9]{3}", "max_new_tokens": 50})
    assert answer["text"][:5].isalpha() and answer["text"][5:].isdigit() and len(answer["text"]) == 8
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    said = '<script>{"pieces": ["y", "e", "s", "!"]}</script>'
    assert scripted.generate(said, {"ebnf": 'root ::= [a-z][a-z][a-z] "!"?'})["text"] == "yes!"


def test_a_stream_has_the_text_of_the_plain_answer(scripted: Engine) -> None:
    params = {"json_schema": json.dumps({"type": "array", "items": {"enum": COLOURS}, "minItems": 3, "maxItems": 3})}
    whole = scripted.generate("go", params)
    *_, last = scripted.generate("go", params, stream=True)
    assert last["text"] == whole["text"]
    jsonschema.validate(json.loads(whole["text"]), json.loads(params["json_schema"]))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 0, "maximum": 20_000_000_000},
        {"type": "integer", "minimum": -(2**70), "maximum": 2**70},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1e300},
        {},
    ],
    ids=["beyond 32 bits", "beyond 64 bits", "a large number", "anything"],
)
def test_limits_of_any_size_and_no_limit_at_all_are_followed_or_refused(scripted: Engine, schema: dict[str, Any]) -> None:
    try:
        answer = scripted.generate("go", {"json_schema": json.dumps(schema), "max_new_tokens": 64})
    except RequestError as error:
        assert error.code == "invalid_grammar"
        return
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        jsonschema.validate(json.loads(answer["text"]), schema)
    assert scripted.generate("go", {"regex": "ok"})["text"] == "ok"


def test_a_wrong_schema_is_named_with_its_place(scripted: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "sting"}}}
    with pytest.raises(RequestError) as caught:
        scripted.generate("go", {"json_schema": json.dumps(schema)})
    assert caught.value.param == "sampling_params.json_schema.properties.a"


FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "json_object", ""),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "null"}}}},
        "json_schema",
        '{"type":"null"}',
    ),
    ("/v1/chat/completions", {"regex": "a+"}, "regex", "a+"),
    ("/v1/chat/completions", {"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a","b"]'),
    ("/v1/completions", {"guided_json": {"type": "null"}}, "json_schema", '{"type":"null"}'),
    ("/v1/completions", {"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
    ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, "json_object", ""),
    (
        "/v1/responses",
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}}}},
        "json_schema",
        '{"type":"null"}',
    ),
    (
        "/v1/messages",
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "null"}}}},
        "json_schema",
        '{"type":"null"}',
    ),
    ("/generate", {"sampling_params": {"regex": "a+"}}, "regex", "a+"),
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "/generate": {"text": "hi"},
}


def test_each_api_has_its_names_of_the_same_grammars() -> None:
    async def scenario() -> None:
        entry = Entry()
        try:
            for path, fields, kind, source in FIELDS:
                entry.engine.sent.clear()
                response = await post(entry.app, path, BODIES[path] | fields)
                assert response.status == 200, response.content
                (request,) = entry.engine.requests
                assert request.sampling.grammar is not None
                assert (request.sampling.grammar.kind, request.sampling.grammar.source) == (kind, source)
                assert request.sampling.grammar.checked
        finally:
            entry.manager.close()

    run(scenario())


def test_an_executor_without_masks_refuses_grammars_by_name() -> None:
    async def scenario() -> None:
        entry = Entry(has_grammars=False)
        for path, fields, _, _ in FIELDS:
            response = await post(entry.app, path, BODIES[path] | fields)
            assert response.status == 400, response.content
            error = response.body["error"]
            assert "unsupported_parameter" in (error.get("code"), error.get("details", {}).get("error_code"))
        assert entry.engine.sent == []

    run(scenario())
