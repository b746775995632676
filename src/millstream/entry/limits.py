"""Types of request fields with their limits: enforced where a body is read, shown in docs, capabilities and OpenAPI document.

What `declared` says is for documents only: what msgspec cannot enforce, or somebody who knows more says better.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from millstream.entry.deadline import MAX_TIMEOUT_S
from millstream.entry.priority import LEAST, MOST
from millstream.messages.sampling import (
    MAX_COUNT,
    MAX_LOGIT_BIAS,
    MAX_STOP_LENGTH,
    MAX_STOP_REGEX_BYTES,
    MAX_STOP_REGEXES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    RANGES,
    Range,
)

MAX_CHOICES = 128  # n, and n times the number of prompts
MAX_RID_CHARS = 128
MAX_SALT_CHARS = 8192  # it stays with the cached prefix


def declared(**schema: Any) -> Meta:
    """JSON Schema keywords of a field: `minimum`, `maximum`, `maxItems` and so on."""
    return Meta(extra_json_schema=schema)


def _within(limits: Range) -> Meta:
    return Meta(gt=limits.low, le=limits.high) if limits.excludes_low else Meta(ge=limits.low, le=limits.high)


Temperature = Annotated[float, _within(RANGES["temperature"])]
TopP = Annotated[float, _within(RANGES["top_p"])]
TopK = Annotated[int, Meta(ge=-1, le=MAX_COUNT, extra_json_schema={"not": {"const": 0}})]
MinP = Annotated[float, _within(RANGES["min_p"])]
PresencePenalty = Annotated[float, _within(RANGES["presence_penalty"])]
FrequencyPenalty = Annotated[float, _within(RANGES["frequency_penalty"])]
RepetitionPenalty = Annotated[float, _within(RANGES["repetition_penalty"])]
Bias = Annotated[float, _within(RANGES["logit_bias"])]
LogitBias = Annotated[
    dict[int, Bias], Meta(max_length=MAX_LOGIT_BIAS, extra_json_schema={"propertyNames": {"pattern": "^[0-9]+$"}})
]
Seed = Annotated[int, declared(minimum=-(2**63), maximum=2**64 - 1)]
StopString = Annotated[str, declared(minLength=1, maxLength=MAX_STOP_LENGTH)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
StopRegex = Annotated[str, declared(minLength=1, maxLength=MAX_STOP_REGEX_BYTES, format="regex")]
StopRegexes = Annotated[list[StopRegex], Meta(max_length=MAX_STOP_REGEXES)]
TokenId = Annotated[int, declared(minimum=0)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)]
MaxTokens = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
AnswerTokens = Annotated[int, Meta(ge=1, le=MAX_COUNT)]  # where the prompt alone is nothing to ask for
MinTokens = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
ThoughtTokens = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
_IDS = {"items": {"type": "integer", "minimum": 0}}
TokenLists = Annotated[list[Any], declared(anyOf=[_IDS, {"items": {"type": "array", **_IDS}}])]  # ids, or lists of them
Prompts = Annotated[  # ids, or a list of prompts
    list[Any],
    declared(minItems=1, anyOf=[{"items": {"type": "string"}}, _IDS, {"items": {"type": "array", "minItems": 1, **_IDS}}]),
]
Rid = Annotated[str, Meta(min_length=1, max_length=MAX_RID_CHARS, pattern="^[ -~]+$")]
Timeout = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)]
Priority = Annotated[int, Meta(ge=LEAST, le=MOST)]
Salt = Annotated[str, Meta(max_length=MAX_SALT_CHARS)]
