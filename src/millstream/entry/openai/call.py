"""The part of understanding a request that chat and completions share: model, rid, limits, one request for each choice."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from millstream.entry.limits import MAX_RID_CHARS
from millstream.entry.openai.protocol import MAX_CHOICES, GenerationFields
from millstream.entry.sampling import cache_namespace
from millstream.errors import RequestError
from millstream.messages import GenerateReqInput, Timing


def resolve_rid(rid: str | None) -> str:
    """The client's rid, or a new one.

    Raises:
        RequestError: it is empty, too long or not printable.
    """
    if rid is None:
        return uuid.uuid4().hex
    if not 1 <= len(rid) <= MAX_RID_CHARS or not rid.isascii() or not rid.isprintable():
        raise RequestError(f"rid must be 1 to {MAX_RID_CHARS} printable ASCII characters.", param="rid")
    return rid


def check_choices(n: int, prompts: int, places: int) -> None:
    """Check the number of choices before anything is made for them; `places`: requests the scheduler takes on at a time.

    Raises:
        RequestError: none, or too many: more than `places` would be refused at any time.
    """
    if not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n is {n}; it must be from 1 to {MAX_CHOICES}.", param="n")
    most = min(MAX_CHOICES, places)
    if n * prompts > most:
        raise RequestError(
            f"{prompts} prompts with n = {n} make {n * prompts} choices; at most {most} are allowed.",
            param="prompt" if prompts > most else "n",
        )


def make_requests(
    fields: GenerationFields,
    rid: str,
    prompts: Sequence[str | list[int]],
    *,
    add_special_tokens: bool,
    deadline: float | None,
    received: float,
    adapted: float,
) -> list[GenerateReqInput]:
    """One request for each prompt and choice; choices of a prompt are neighbours.

    Raises:
        RequestError: a value is out of range.
    """
    limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    namespace = cache_namespace(fields.cache_salt, fields.extra_key)
    progress = fields.stream and fields.stream_options is not None and bool(fields.stream_options.include_progress)
    single = fields.n * len(prompts) == 1
    return [
        GenerateReqInput(
            rid=rid if single else f"{rid}-{number * fields.n + choice}",
            text=prompt if isinstance(prompt, str) else None,
            input_ids=None if isinstance(prompt, str) else prompt,
            add_special_tokens=add_special_tokens,
            sampling=fields.to_sampling(max_new_tokens=limit, min_new_tokens=fields.min_tokens, choice=choice),
            cache_namespace=namespace,
            priority=fields.priority,
            deadline=deadline,
            progress=progress and number == choice == 0,  # the others are beside it
            timing=Timing(received=received, adapted=adapted),
        )
        for number, prompt in enumerate(prompts)
        for choice in range(fields.n)
    ]
