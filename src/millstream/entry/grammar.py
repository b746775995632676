"""The fields that say what form a text must have, under the names of each API, and how they become one `GrammarSpec`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from millstream.errors import RequestError
from millstream.messages.grammar import GrammarKind, GrammarSpec

MAX_CHOICES = 10_000

JsonSource = str | dict[str, Any]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)]


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class JsonSchema(Struct, forbid_unknown_fields=True):
    """`json_schema` of a format. The text follows the schema whether `strict` or not; `name` and `description` are not used."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON by a schema."""

    json_schema: JsonSchema


class StructuralTagFormat(Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True):
    """Free text in which `triggers` begin parts of a given form. SGLang's."""

    structures: list[Any]
    triggers: list[str]


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """`structured_outputs`, as vLLM has it: one of them."""

    json: JsonSource | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: JsonSource | None = None

    def specs(self) -> list[GrammarSpec | None]:
        """What each member asks for."""
        return [
            spec_of("json_schema", self.json, "structured_outputs.json"),
            spec_of("regex", self.regex, "structured_outputs.regex"),
            spec_of("choice", self.choice, "structured_outputs.choice"),
            spec_of("ebnf", self.grammar, "structured_outputs.grammar"),
            GrammarSpec("json_object", param="structured_outputs.json_object") if self.json_object else None,
            spec_of("structural_tag", self.structural_tag, "structured_outputs.structural_tag"),
        ]


def spec_of(kind: GrammarKind, value: str | dict[str, Any] | list[str] | None, param: str) -> GrammarSpec | None:
    """What a field asks for; nothing where it is empty."""
    if value is None or value == "":
        return None
    return GrammarSpec(kind, value if isinstance(value, str) else msgspec.json.encode(value).decode(), param)


def spec_of_format(form: ResponseFormat | None, param: str) -> GrammarSpec | None:
    """What a `response_format` asks for."""
    match form:
        case JsonObjectFormat():
            return GrammarSpec("json_object", param=param)
        case JsonSchemaFormat(json_schema=inner):
            return spec_of("json_schema", inner.schema, f"{param}.json_schema.schema")
        case StructuralTagFormat():
            return spec_of("structural_tag", {"structures": form.structures, "triggers": form.triggers}, param)
        case _:
            return None


def only_one(specs: Iterable[GrammarSpec | None]) -> GrammarSpec | None:
    """The one grammar of a request, if it has any.

    Raises:
        RequestError: it has several.
    """
    given = [spec for spec in specs if spec is not None]
    if len(given) > 1:
        names = " and ".join(f"`{spec.param}`" for spec in given[:2])
        raise RequestError(f"{names} both say what form the text has; give one.", param=given[1].param)
    return given[0] if given else None
