"""The body of POST /v1/embeddings: what is honoured, what has no effect, what is refused. Docs are made from this file."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from millstream.entry.fields import FieldRules, Refused
from millstream.entry.limits import Priority, Rid, Salt, Timeout
from millstream.entry.openai.protocol import FORMS


class EmbeddingRequest(Struct, kw_only=True):
    """POST /v1/embeddings. `input`: text, ids, or a list of either. `dimensions` keeps the first numbers of each embedding."""

    input: str | list[Any]
    model: str = ""  # empty: the served model
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    cache_salt: Salt = ""
    extra_key: Salt = ""
    rid: Rid | None = None
    timeout: Timeout | None = None  # seconds
    priority: Priority = 0  # the higher goes first


_NO_MEDIA = "this server takes text only"

EMBEDDINGS = FieldRules(
    honoured=EmbeddingRequest,
    example={"input": "The food was delicious."},
    forms=FORMS,
    without_effect={
        "user": "not used",
        "metadata": "not stored",
        "safety_identifier": "not used",
        "prompt_cache_key": "prefixes are found by their tokens; use `cache_salt` to keep them apart",
    },
    refused={
        "add_special_tokens": Refused("pass token ids as the input to decide about special tokens", (True,)),
        "truncate_prompt_tokens": Refused("inputs are never cut"),
        "truncate": Refused("inputs are never cut", ("NONE", "none")),
        "normalize": Refused("every embedding has length 1", (True,)),
        "embed_dtype": Refused("embeddings are float32", ("float32",)),
        "endianness": Refused("base64 is of little-endian numbers", ("little", "native")),
        "input_type": Refused("the model knows no types of input; write its prefix into the input"),
        "messages": Refused("render a conversation with /tokenize, and pass its ids as the input"),
        "input_embeds": Refused("embeddings as input are taken by /generate"),
        "image_data": Refused(_NO_MEDIA),
        "modalities": Refused(_NO_MEDIA, (["text"],)),
        "lora_path": Refused("LoRA adapters are not supported by this server", ("",)),
    },
)
