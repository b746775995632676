"""Engine: generate in the program's own process, without HTTP. What it answers is what `/generate` of a server answers.

Requests go the way they go in a server, through the same managers (`core`): they are batched with each other, share prefixes
and end in one way, whoever asks from whichever thread or event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

import msgspec

from millstream.config import EMBEDDED_MODEL, HttpOptions, KeyOptions, ServerConfig
from millstream.engine.calls import abort, generate_stream, generate_whole, live_facts
from millstream.engine.core import Core
from millstream.entry.fields import Json
from millstream.errors import EngineDeadError, StartupError
from millstream.execution.interface import Executor

T = TypeVar("T")
SamplingFields = dict[str, Any]
Answer: TypeAlias = Json | list[Json]

NOT_OF_AN_ENGINE = frozenset(  # what is about HTTP, and about processes and their lives
    {option.name for group in (HttpOptions, KeyOptions) for option in dataclasses.fields(group)}
    | {"start_timeout_s", "drain_timeout_s", "max_restarts", "wedge_timeout_s", "step_timeout_s", "log_level"}
)


class Engine:
    """A model, loaded, and all that runs requests on it. Close it with `shutdown`, or use it as a context manager.

    Args:
        model: as `millstream serve` takes it: `embedded`, a GGUF file, or a directory in Hugging Face layout.
        executor: a name as for `--executor`, or an `Executor` of your own, which is then closed with the engine.
        options: of `ServerConfig`, by name; those of HTTP and of processes are refused.

    Raises:
        StartupError: an option, the model or its tokenizer cannot be used.
    """

    def __init__(self, model: str = EMBEDDED_MODEL, *, executor: str | Executor = "auto", **options: Any) -> None:
        plugged = None if isinstance(executor, str) else executor
        config = _config({"model": model, "executor": executor if isinstance(executor, str) else "auto", **options})
        self._core = Core(config, plugged)
        self._close = weakref.finalize(self, self._core.close)  # at exit, too: no thread may be at work in a model then

    @overload
    def generate(
        self, prompt: str | list[str] | None = ..., sampling_params: SamplingFields | list[SamplingFields] | None = ...,
        *, stream: Literal[False] = ..., **fields: Any,
    ) -> Answer: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: str | list[str] | None = ..., sampling_params: SamplingFields | list[SamplingFields] | None = ...,
        *, stream: Literal[True], **fields: Any,
    ) -> Iterator[Json]: ...  # fmt: skip

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: SamplingFields | list[SamplingFields] | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Answer | Iterator[Json]:
        """Answer one prompt, or a list of them.

        Args:
            prompt: the `text` of a body of /generate; or give `input_ids`.
            sampling_params: as there, one object or one for each prompt.
            stream: return an iterator over what would be the events; to close it, or to drop it, aborts what still runs.
            fields: every other field of such a body: `rid`, `return_logprob`, `incremental_streaming_output` and so on.

        Returns:
            What the server would answer: an object with `text`, `output_ids` and `meta_info`, or a list of them.

        Raises:
            RequestError: a field is wrong, unknown or refused; `param` names it.
            MillstreamError: the request failed, as its class says.
        """
        body = _body(prompt, sampling_params, fields)
        if stream:
            return self._iterate(generate_stream(self._core.service, {**body, "stream": True}))
        answer: Answer = self._wait(generate_whole(self._core.service, body))
        return answer

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: SamplingFields | list[SamplingFields] | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """As `generate`, on the caller's event loop; with `stream` it returns an asynchronous iterator.

        To cancel the caller aborts what still runs.
        """
        body = _body(prompt, sampling_params, fields)
        if stream:
            return self._iterate_async(generate_stream(self._core.service, {**body, "stream": True}))
        return await asyncio.wrap_future(self._core.run(generate_whole(self._core.service, body)))

    def abort_request(self, rid: str | list[str] = "", *, prefix: bool = False, abort_all: bool = False) -> list[str]:
        """Abort requests as `/abort_request` does; returns the rids that were live.

        Raises:
            RequestError: none is named.
        """
        return self._wait(abort(self._core.service, {"rid": rid, "prefix": prefix, "abort_all": abort_all}))

    def get_server_info(self) -> Json:
        """What `/server_info` of a server would say of the engine: options, counts, pages."""
        return self._wait(live_facts(self._core.service))

    def shutdown(self) -> None:
        """Abort what runs and free the model. What is asked of the engine then is refused; to call it twice does no harm."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._core.run(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller does not wait any more: a key was pressed
            raise

    def _iterate(self, events: AsyncIterator[Json]) -> Iterator[Json]:
        try:
            while (event := self._wait(_next(events))) is not None:
                yield event
        finally:
            self._leave(events)

    async def _iterate_async(self, events: AsyncIterator[Json]) -> AsyncIterator[Json]:
        try:
            while (event := await asyncio.wrap_future(self._core.run(_next(events)))) is not None:
                yield event
        finally:
            self._leave(events)

    def _leave(self, events: AsyncIterator[Json]) -> None:
        """Say that nobody reads. Waits for nothing: the garbage collector may drop a stream in a thread of the engine."""
        with contextlib.suppress(EngineDeadError):  # shut down: all streams have ended
            self._core.run(_close(events))


def _config(options: dict[str, Any]) -> ServerConfig:
    """The options, typed as the command line would have them."""
    known = {option.name for option in dataclasses.fields(ServerConfig)} - NOT_OF_AN_ENGINE
    for name in options:
        if name not in known:
            raise StartupError(f"an engine has no option `{name}`")
    try:
        return msgspec.convert(options, ServerConfig)
    except msgspec.ValidationError as error:
        raise StartupError(f"an option of the engine is wrong: {error}") from None


async def _next(events: AsyncIterator[Json]) -> Json | None:
    return await anext(events, None)


async def _close(events: Any) -> None:
    await events.aclose()


def _body(prompt: str | list[str] | None, sampling_params: SamplingFields | list[SamplingFields] | None, fields: Json) -> Json:
    return {"text": prompt, "sampling_params": sampling_params, **fields}
