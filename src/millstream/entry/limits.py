"""What the fields of requests are limited to, said beside their types: for docs, capabilities and the OpenAPI document.

A declaration does not enforce; who uses a value does, with a message that names it. Both take their numbers from one constant,
and a test sends a value beyond each limit.
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

MAX_RID_CHARS = 128


def declared(**schema: Any) -> Meta:
    """JSON Schema keywords of a field: `minimum`, `maximum`, `maxItems` and so on."""
    return Meta(extra_json_schema=schema)


def _within(limits: Range) -> Meta:
    low = "exclusiveMinimum" if limits.excludes_low else "minimum"
    return declared(**{low: limits.low, "maximum": limits.high})


Temperature = Annotated[float, _within(RANGES["temperature"])]
TopP = Annotated[float, _within(RANGES["top_p"])]
TopK = Annotated[int, declared(minimum=-1, maximum=MAX_COUNT, **{"not": {"const": 0}})]
MinP = Annotated[float, _within(RANGES["min_p"])]
PresencePenalty = Annotated[float, _within(RANGES["presence_penalty"])]
FrequencyPenalty = Annotated[float, _within(RANGES["frequency_penalty"])]
RepetitionPenalty = Annotated[float, _within(RANGES["repetition_penalty"])]
Bias = Annotated[float, _within(RANGES["logit_bias"])]
LogitBias = Annotated[dict[int, Bias], declared(maxProperties=MAX_LOGIT_BIAS, propertyNames={"pattern": "^[0-9]+$"})]
Seed = Annotated[int, declared(minimum=-(2**63), maximum=2**64 - 1)]
StopString = Annotated[str, declared(minLength=1, maxLength=MAX_STOP_LENGTH)]
StopStrings = Annotated[list[StopString], declared(maxItems=MAX_STOP_STRINGS)]
StopRegex = Annotated[str, declared(minLength=1, maxLength=MAX_STOP_REGEX_BYTES, format="regex")]
StopRegexes = Annotated[list[StopRegex], declared(maxItems=MAX_STOP_REGEXES)]
TokenId = Annotated[int, declared(minimum=0)]
StopTokenIds = Annotated[list[TokenId], declared(maxItems=MAX_STOP_TOKEN_IDS)]
MaxTokens = Annotated[int, declared(minimum=1, maximum=MAX_COUNT)]
MinTokens = Annotated[int, declared(minimum=0, maximum=MAX_COUNT)]
Rid = Annotated[str, declared(minLength=1, maxLength=MAX_RID_CHARS, pattern="^[ -~]+$")]
Timeout = Annotated[float, declared(exclusiveMinimum=0, maximum=MAX_TIMEOUT_S)]
Priority = Annotated[int, declared(minimum=LEAST, maximum=MOST)]
