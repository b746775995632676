"""A stand-in for scheduler and detokenizer, seen from the entry: takes what is sent, answers when a test says so."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from millstream.config import ServerConfig
from millstream.entry.http.app import App
from millstream.entry.parsers import choose_parsers
from millstream.entry.service import LoadedText, Service
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.messages import (
    Abort,
    AbortReq,
    AdmissionOutput,
    BatchStrOutput,
    EngineInfo,
    FinishReason,
    FlushReply,
    FlushReq,
    Journey,
    JourneysReply,
    JourneysReq,
    Length,
    LiveRequest,
    Measures,
    ProcessState,
    RadixNode,
    RadixReply,
    RadixReq,
    Rejection,
    RowDetails,
    ServerState,
    StatsReply,
    StatsReq,
    Stop,
    TextColumns,
    TextRow,
    Timing,
    TokenizedGenerateReqInput,
    Usage,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.text.chat_prompt import ChatPrompts
from millstream.text.tokenizer import load_scripted_tokenizer

CONTEXT_LENGTH = 512
HIDDEN_SIZE = 8
NAMES = ("tiny", "tiny-alias")
NO_SLOT = 999_999  # of requests that never were
TURNS = 40  # of the event loop: more than any chain of tasks here is long
TOKENIZER = load_scripted_tokenizer()
PROCESSES = ("entry-0", "scheduler", "detokenizer")


def engine_info(
    context_length: int = CONTEXT_LENGTH, max_running_requests: int = 8, *, has_logprobs: bool = True, has_grammars: bool = True
) -> EngineInfo:
    return EngineInfo(
        vocab_size=TOKENIZER.vocab_size,
        context_length=context_length,
        eos_token_ids=sorted(TOKENIZER.eos_token_ids),
        num_pages=64,
        page_size=16,
        max_running_requests=max_running_requests,
        executor="fake",
        hidden_size=HIDDEN_SIZE,
        has_logprobs=has_logprobs,
        has_grammars=has_grammars,
    )


def state(engine: EngineInfo | None = None, **phases: Any) -> ServerState:
    """The supervisor's view: all READY but for `phases`."""
    return ServerState(
        processes={name: ProcessState(pid=1, state=phases.get(name, "READY")) for name in {*PROCESSES, *phases}}, engine=engine
    )


class FakeEngine:
    """`answer` is called for each request, by default `say("Hello")`; tests that steer by hand set `hold`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.handle: Callable[[Any], None] = lambda message: None
        self.answer: Callable[[TokenizedGenerateReqInput], None] = self.say("Hel", "lo")
        self.live: list[LiveRequest] = []  # what it says of live requests
        self.num_live = 0  # what it says to a flush
        self.num_steps = 7
        self.tree: list[RadixNode] = []
        self.pid = 1
        self._made: dict[str, int] = {}
        self._tasks: list[asyncio.Future[None]] = []
        self._slots: dict[str, int] = {}  # of those that have had a row
        self._arrived = asyncio.Event()

    def send(self, message: Any) -> None:
        self.sent.append(message)
        self._arrived.set()
        if isinstance(message, TokenizedGenerateReqInput):
            self._slots.pop(message.rid, None)  # of an earlier request
            asyncio.get_running_loop().call_soon(self.answer, message)
        elif isinstance(message, FlushReq):
            pages = 0 if self.num_live else 3
            asyncio.get_running_loop().call_soon(self.handle, FlushReply(message.id, self.num_live, pages))
        elif isinstance(message, RadixReq):
            asyncio.get_running_loop().call_soon(self.handle, RadixReply(message.id, self.tree[: message.max_nodes], 9, 6, 2))
        elif isinstance(message, JourneysReq):
            asyncio.get_running_loop().call_soon(self.handle, JourneysReply(message.id, list(self.live)))
        elif isinstance(message, StatsReq):
            asyncio.get_running_loop().call_soon(self.handle, self._stats(message))

    def say(self, *pieces: str, finish: FinishReason | None = None) -> Callable[[TokenizedGenerateReqInput], None]:
        """Admit, then one row of one token for each piece; the last is final."""

        def answer(request: TokenizedGenerateReqInput) -> None:
            self.accept(request.rid)
            for index, piece in enumerate(pieces):
                last = index == len(pieces) - 1
                self.row(request.rid, piece, finish=(finish or Stop()) if last else None)

        return answer

    def say_one_by_one(self, *pieces: str, finish: FinishReason | None = None) -> Callable[[TokenizedGenerateReqInput], None]:
        """The same, and the entry does all it has to between two rows."""

        async def answer(request: TokenizedGenerateReqInput) -> None:
            self.accept(request.rid)
            for index, piece in enumerate(pieces):
                self.row(request.rid, piece, finish=(finish or Stop()) if index == len(pieces) - 1 else None)
                for _ in range(TURNS):
                    await asyncio.sleep(0)

        return lambda request: self._tasks.append(asyncio.ensure_future(answer(request)))

    def forget(self) -> None:
        """Start over: nothing was sent, and the next token of any rid is its first."""
        self.sent.clear()
        self._made.clear()

    @property
    def requests(self) -> list[TokenizedGenerateReqInput]:
        return [message for message in self.sent if isinstance(message, TokenizedGenerateReqInput)]

    @property
    def aborts(self) -> list[AbortReq]:
        return [message for message in self.sent if isinstance(message, AbortReq)]

    async def wait_sent(self, kind: type, count: int = 1) -> None:
        """Wait until `count` messages of `kind` were sent."""
        while sum(isinstance(message, kind) for message in self.sent) < count:
            self._arrived.clear()
            await self._arrived.wait()

    def slot(self, rid: str) -> int:
        """Of the last request of that rid."""
        return next((sent.slot for sent in reversed(self.requests) if sent.rid == rid), NO_SLOT)

    def accept(self, *rids: str) -> None:
        self.handle(AdmissionOutput(accepted=[self.slot(rid) for rid in rids]))

    def reject(self, rid: str, **facts: Any) -> None:
        facts = {"message": "The queue is full.", "status": 429, "type": "overloaded_error", "retry_after_s": 1} | facts
        self.handle(AdmissionOutput(rejected=[Rejection(rid=rid, slot=self.slot(rid), **facts)]))

    def row(
        self,
        rid: str,
        text: str,
        *,
        finish: FinishReason | None = None,
        ids: list[int] | None = None,
        details: RowDetails | None = None,
        journey: Journey | None = None,
    ) -> None:
        ids = [40 + self._made.get(rid, 0)] if ids is None else ids
        self._made[rid] = self._made.get(rid, 0) + len(ids)
        request = next((r for r in reversed(self.requests) if r.rid == rid), None)
        usage = Usage(len(request.input_ids) if request else 1, self._made[rid], cached_tokens=1)
        timing = Timing(queued=1.0, admitted=2.0, decoded=3.0) if finish is not None else None
        if timing is not None and journey is not None:
            timing.journey = msgspec.msgpack.encode(journey)
        if finish is not None and details is None and request is not None and request.wants_embedding:
            details = RowDetails(embedding=bytes(4 * HIDDEN_SIZE))
        is_first = rid not in self._slots
        slot = self._slots.setdefault(rid, request.slot if request else NO_SLOT)
        if finish is None and ids and not is_first and details is None:
            self.handle(BatchStrOutput([], [TextColumns(pack_slots([slot]), pack_ids(ids), len(ids), [text])]))
        else:
            self.handle(BatchStrOutput([TextRow(rid, slot, text, ids, usage, finish, timing, details=details)]))

    def end(self, rid: str, cause: Any = "client_gone", message: str = "The request was aborted.", status: int = 500) -> None:
        self.row(rid, "", finish=Abort(cause, message, status), ids=[])

    def _stats(self, asked: StatsReq) -> StatsReply:
        measures = [Measures(name, self.pid, [], []) for name in ("scheduler", "detokenizer")] if asked.metrics else None
        return StatsReply(
            id=asked.id, scheduler_requests=2, waiting=1, running=1, pages_total=64, pages_free=60, pages_cached=3,
            measures=measures, steps=self.num_steps, retractions=5, preemptions=2, detokenizer_requests=1, dropped_rows=0,
        )  # fmt: skip


def hold(request: TokenizedGenerateReqInput) -> None:
    """An `answer` that waits for the test."""


class Entry:
    """The entry's parts around a fake engine, ready unless told otherwise."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        *,
        ready: bool = True,
        context_length: int = CONTEXT_LENGTH,
        max_running_requests: int = 8,
        tokenizer: Any = TOKENIZER,
        number: int = 0,
        templates: dict[str, str] | None = None,
        has_logprobs: bool = True,
        has_grammars: bool = True,
    ) -> None:
        self.engine = FakeEngine()
        config = dataclasses.replace(config or ServerConfig(), strict_ledger=True)
        self.service = Service(config=config, to_scheduler=self.engine, entry=number)
        self.app = App(self.service)
        if ready:
            templates = templates or TOKENIZER.chat_templates
            chat = ChatPrompts(TOKENIZER, templates, escape=config.chat_special_tokens == "escape")
            parsers = choose_parsers(config, templates)
            self.service.text_loaded(LoadedText(tokenizer=tokenizer, chat=chat, names=NAMES, parsers=parsers))
            self.service.update(
                state(engine_info(context_length, max_running_requests, has_logprobs=has_logprobs, has_grammars=has_grammars))
            )
            self.engine.handle = self.manager.handle

    @property
    def manager(self) -> TokenizerManager:
        manager = self.service.started
        assert manager is not None
        return manager


def limit(tokens: int) -> Length:
    return Length(tokens)
