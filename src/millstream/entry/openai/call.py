"""The part of understanding a request that chat and completions share: choices, limits, one request for each choice."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.entry.fields import check_range
from millstream.entry.limits import MAX_CHOICES
from millstream.entry.openai.protocol import GenerationFields
from millstream.entry.terms import Terms
from millstream.errors import RequestError
from millstream.messages import GenerateReqInput, LogprobParams
from millstream.messages.sampling import MAX_COUNT


def check_choices(n: int, prompts: int, capacity: int, *, param: str = "n") -> None:
    """Check the number of choices before anything is made for them; `capacity`: requests the scheduler takes on at a time.

    `param` is what the client calls `n`, the choices made for each prompt.

    Raises:
        RequestError: none, or too many: more than `capacity` would be refused at any time.
    """
    check_range(param, n, 1, MAX_CHOICES)
    most = min(MAX_CHOICES, capacity)
    if n * prompts > most:
        raise RequestError(
            f"{prompts} prompts with {param} = {n} make {n * prompts} choices; at most {most} are allowed.",
            param="prompt" if prompts > most else param,
        )


def check_stream_options(fields: GenerationFields) -> None:
    """Check that what is said about a stream is said of one.

    Raises:
        RequestError: it is none.
    """
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options is only allowed with stream = true.", param="stream_options")


def max_new_tokens(fields: GenerationFields, least: int) -> int | None:
    """The limit of new tokens, the newer name's where both are given.

    Raises:
        RequestError: one of the two is out of range.
    """
    for name, limit in (("max_tokens", fields.max_tokens), ("max_completion_tokens", fields.max_completion_tokens)):
        if limit is not None:
            check_range(name, limit, least, MAX_COUNT)
    return fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens


def make_requests(
    fields: GenerationFields,
    terms: Terms,
    prompts: Sequence[str | list[int]],
    *,
    add_special_tokens: bool,
    width: int | None = None,
    least_tokens: int = 1,
    logprobs: LogprobParams | None = None,
) -> list[GenerateReqInput]:
    """One request for each prompt and choice; the `width` choices of a prompt, `n` unless told otherwise, are neighbours.

    Raises:
        RequestError: a value is out of range.
    """
    limit = max_new_tokens(fields, least_tokens)
    width = width or fields.n
    progress = fields.stream and fields.stream_options is not None and bool(fields.stream_options.include_progress)
    single = width * len(prompts) == 1
    return [
        terms.request(
            prompt,
            fields.to_sampling(max_new_tokens=limit, min_new_tokens=fields.min_tokens, choice=choice),
            number=None if single else number * width + choice,
            add_special_tokens=add_special_tokens,
            progress=progress and number == choice == 0,  # the others are beside it
            logprobs=logprobs,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(width)
    ]
