"""Prompts that come as embeddings in place of ids: JSON numbers to float32, checked, with a prefix-cache identity of their own.

Called by adapters before a request is made. A position of such a prompt is no token: its id is 0, which the model never looks
at, penalties do not count, and usage counts as one. Prefixes are found by ids, so what tells two of these prompts apart, and
from those of tokens, is the namespace: it begins with the SHA-256 of the numbers, and no namespace that a client can choose
begins that way (`sampling.cache_namespace`).
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.entry.prompt_encoder import PromptEncoder
from millstream.entry.tokenize import EMBEDS_NAMESPACE
from millstream.errors import ContextLengthExceeded, RequestError
from millstream.messages import EngineInfo

PARAM = "input_embeds"


class InputEmbeds(NamedTuple):
    """One prompt: `data` is float32 `[len(input_ids), hidden]`; `namespace` goes before what the client chose for its own."""

    data: bytes
    input_ids: list[int]
    namespace: str


def is_batch(value: list[Any]) -> bool:
    """Whether these are several prompts, as far as their first item tells."""
    return bool(value) and isinstance(value[0], list) and bool(value[0]) and isinstance(value[0][0], list)


async def parse_input_embeds(prompts: PromptEncoder, engine: EngineInfo, value: Any, *, rid: str = "") -> list[InputEmbeds]:
    """Read the field of one prompt, a list of embeddings, or of a batch of them; off the event loop where it is large.

    Raises:
        RequestError: the model takes none, or something is no number, not finite or of another size.
        ContextLengthExceeded: a prompt has more positions than the context.
    """
    if not engine.hidden_size:
        raise RequestError("`input_embeds` is refused: the served model takes no embeddings.", param=PARAM)
    if not isinstance(value, list) or not value:
        raise RequestError("input_embeds must be a list of embeddings, or a list of such lists.", param=PARAM)
    batch = is_batch(value)
    size = sum(
        len(row)
        for prompt in (value if batch else [value])
        if isinstance(prompt, list)
        for row in prompt
        if isinstance(row, list)
    )
    return await prompts.off_loop(size, partial(_read_all, value, batch, engine), rid=rid)


def _read_all(value: list[Any], batch: bool, engine: EngineInfo) -> list[InputEmbeds]:
    if not batch:
        return [_read(value, PARAM, engine)]
    return [_read(prompt, f"{PARAM}[{index}]", engine) for index, prompt in enumerate(value)]


def _read(rows: Any, param: str, engine: EngineInfo) -> InputEmbeds:
    if not isinstance(rows, list) or not rows:
        raise RequestError(f"{param} must be a list of embeddings, at least one.", param=param)
    if len(rows) > engine.context_length:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {engine.context_length} tokens; {param} has {len(rows)} positions.",
            param=param,
        )
    for index, row in enumerate(rows):
        if not isinstance(row, list) or not {*map(type, row)} <= {int, float}:
            raise RequestError(f"{param}[{index}] must be a list of numbers.", param=f"{param}[{index}]")
        if len(row) != engine.hidden_size:
            raise RequestError(
                f"{param}[{index}] has {len(row)} numbers; an embedding of this model has {engine.hidden_size}.",
                param=f"{param}[{index}]",
            )
    data = _floats(rows, param).tobytes()
    return InputEmbeds(data, [0] * len(rows), f"{EMBEDS_NAMESPACE}{sha256(data).hexdigest()}:")


def _floats(rows: list[list[Any]], param: str) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            values = np.array(rows, np.float64).astype(np.float32)
    except OverflowError:  # an integer beyond every float
        raise RequestError(f"{param} has a number that is no 32-bit float.", param=param) from None
    if not np.isfinite(values).all():
        index = int(np.isfinite(values).all(axis=1).argmin())
        raise RequestError(f"{param}[{index}] has a number that is no finite 32-bit float.", param=f"{param}[{index}]")
    return values
