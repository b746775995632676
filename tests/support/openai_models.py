"""The `openai` package's own models as a measure: an answer is valid, and what it has beyond them is listed by its path."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

# what answers and chunks of the OpenAI routes have beyond OpenAI's; docs/api.md says what it means
EXTENSIONS = {
    "choices[].matched_stop",
    "choices[].token_ids",
    "choices[].prompt_logprobs",
    "prompt_token_ids",
    "prompt_logprobs",
}
MODEL_EXTENSIONS = {"root", "parent", "max_model_len"}


def foreseen(completion: dict[str, Any]) -> dict[str, Any]:
    """A completion, or a chunk of one, for OpenAI's model of it, which does not foresee what OpenAI itself sends.

    That is: no finish_reason yet, and null as the log probability of a prompt's first token.
    """
    return {**completion, "choices": [_foreseen_choice(choice) for choice in completion["choices"]]}


def _foreseen_choice(choice: dict[str, Any]) -> dict[str, Any]:
    logprobs = choice["logprobs"]
    if logprobs is not None and logprobs["token_logprobs"][:1] == [None]:
        tops = logprobs["top_logprobs"]
        logprobs = {
            **logprobs,
            "token_logprobs": [0.0, *logprobs["token_logprobs"][1:]],
            "top_logprobs": tops and [{}, *tops[1:]],
        }
    return {**choice, "logprobs": logprobs, "finish_reason": choice["finish_reason"] or "stop"}


def extras(model: type[BaseModel], value: dict[str, Any]) -> set[str]:
    """Validate `value`, and return the path of every member that the model does not know, at any depth."""
    model.model_validate(value, strict=True)
    return set(_extras(model, value, ""))


def _extras(form: Any, value: Any, path: str) -> typing.Iterator[str]:
    if isinstance(value, dict) and (model := _model(form, value)) is not None:
        for name, member in value.items():
            where = f"{path}.{name}" if path else name
            if name in model.model_fields:
                yield from _extras(model.model_fields[name].annotation, member, where)
            else:
                yield where
    elif isinstance(value, list):
        for item in value:
            yield from _extras(_item(form), item, f"{path}[]")


def _model(form: Any, value: dict[str, Any]) -> type[BaseModel] | None:
    """The model that fits `value` best among those that `form` allows."""
    models = [each for each in _flat(form) if isinstance(each, type) and issubclass(each, BaseModel)]
    return min(models, key=lambda model: len(value.keys() - model.model_fields.keys()), default=None)


def _item(form: Any) -> Any:
    lists = [each for each in _flat(form) if typing.get_origin(each) is list]
    return typing.get_args(lists[0])[0] if lists else None


def _flat(form: Any) -> list[Any]:
    """The members of a union, also where it carries annotations."""
    if typing.get_origin(form) is typing.Annotated:
        return _flat(typing.get_args(form)[0])
    if typing.get_origin(form) is list or not typing.get_args(form):
        return [form]
    return [each for part in typing.get_args(form) for each in _flat(part)]
