"""Service: what HTTP handlers may reach (options, model names, template, manager) and whether the server can work now.

Owned by the entry process, which tells it what happens; handlers only ask. It starts empty: HTTP answers while all loads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from millstream.config import LogLevel, ServerConfig
from millstream.entry.failure import failure_of_death
from millstream.entry.openai.responses.store import ResponseStore
from millstream.entry.parsers import Parsers, choose_parsers
from millstream.entry.recent import Recent
from millstream.entry.tape import Tapes
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.errors import EngineDeadError, ModelNotFound, RequestError
from millstream.ipc.address import entry_name, entry_number
from millstream.ipc.channel import Sender
from millstream.ipc.entries import EntryChannels
from millstream.messages import (
    EngineInfo,
    LedgerQuery,
    Measures,
    ProcessState,
    RequestRecord,
    ServerState,
    SetLogLevel,
    WorkerReply,
    WorkerReport,
    WorkerReq,
)
from millstream.observe import families
from millstream.observe.ledger import Ledger
from millstream.observe.recorder import Recorder
from millstream.observe.tally import Tally, sample
from millstream.text.chat_prompt import ChatPrompts
from millstream.text.tokenizer import Tokenizer

SUPERVISOR_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class LoadedText:
    """What the entry loads: the tokenizer, its chat templates if the model has one, the names the model goes by, and
    the parsers of its text."""

    tokenizer: Tokenizer
    chat: ChatPrompts | None
    names: tuple[str, ...]
    parsers: Parsers = Parsers()


def prepare_text(config: ServerConfig, tokenizer: Tokenizer) -> LoadedText:
    """What the entry needs beside `tokenizer`: its templates, compiled, and the names in `config`, which must be filled in.

    Raises:
        StartupError: a template cannot be used, or there is no parser of the name in an option.
    """
    chat = None
    if tokenizer.chat_template is not None:
        chat = ChatPrompts(tokenizer, tokenizer.chat_templates, escape=config.chat_special_tokens == "escape")
    parsers = choose_parsers(config, tokenizer.chat_templates)
    return LoadedText(tokenizer=tokenizer, chat=chat, names=config.served_model_name, parsers=parsers)


class Service:
    """State of the server as its clients see it."""

    def __init__(
        self,
        *,
        config: ServerConfig,
        to_scheduler: Sender,
        entry: int = 0,
        has_started: bool = False,
        to_workers: EntryChannels | None = None,
        read_all: Callable[[], None] = lambda: None,
        export: Callable[[RequestRecord], None] | None = None,
        tell: Callable[[Measures | SetLogLevel], bool] = lambda message: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.entry = entry  # the number of this worker
        self.clock = clock
        self.started_at = int(time.time())
        self.processes = ServerState(processes={}).processes
        self.lasting_measures: list[Measures] = []  # of processes that are gone, and the supervisor's
        self.draining = False
        self.proof: asyncio.Task[str | None] | None = None  # that tokens can be made: what /health_generate waits for
        self.responses = ResponseStore(
            max_count=config.max_stored_responses // config.entry_workers,
            max_bytes=config.max_stored_response_bytes // config.entry_workers,
        )
        self.log_level = config.log_level
        self._tell = tell  # the supervisor
        self._news = asyncio.Event()  # set and replaced when that has spoken
        self.recent = Recent(-(-config.max_recent_requests // config.entry_workers), export)
        self.tapes = Tapes(config) if config.record else None
        self._tally = Tally("entry", tell)
        self.recorder = Recorder(self._tally)
        self._has_started = has_started  # the server could take requests once
        self._to_scheduler = to_scheduler
        self._to_workers = to_workers  # None: there are no others
        self._read_all = read_all
        self._engine: EngineInfo | None = None
        self._detokenizer_pid: int | None = None  # of the one that makes the text now
        self._detokenizer_lost_at = 0.0  # when it was known to be gone; 0.0: it is there
        self._text: LoadedText | None = None
        self._manager: TokenizerManager | None = None

    def text_loaded(self, text: LoadedText) -> None:
        """Tokenizer and template are there."""
        self._text = text
        self._make_manager()

    def update(self, state: ServerState) -> None:
        """Take the supervisor's view. A dead scheduler ends every open request; a new detokenizer gets what the old one knew.

        `read_all` is called before a new detokenizer is made use of: all that the old one sent must have been handled.
        """
        for name in self.processes.keys() - state.processes.keys():
            if self._to_workers is not None and (number := entry_number(name)) is not None:
                self._to_workers.forget(number)
        self.processes = state.processes
        self.lasting_measures = state.measures
        self.log_level = state.log_level or self.log_level
        self._news.set()
        self._news = asyncio.Event()
        self._engine = self._engine or state.engine
        self._make_manager()
        self._has_started = self._has_started or all(process.state == "READY" for process in state.processes.values())
        if self._manager is not None:
            for name in ("scheduler", "detokenizer"):
                if name in state.processes:
                    self._follow(self._manager, name, state.processes[name])

    async def set_log_level(self, level: LogLevel) -> None:
        """Have all processes log from `level` on; returns once they were told.

        Raises:
            EngineDeadError: the supervisor does not answer.
        """
        if not self._tell(SetLogLevel(level)):
            raise EngineDeadError("The supervisor does not keep up.")
        try:
            async with asyncio.timeout(SUPERVISOR_TIMEOUT_S):
                while self.log_level != level:
                    await self._news.wait()
        except TimeoutError:
            raise EngineDeadError("The supervisor did not answer.") from None

    def _follow(self, manager: TokenizerManager, name: str, process: ProcessState) -> None:
        """See whether an engine process died or was replaced."""
        if process.state == "FAILED":
            failure = failure_of_death(f"The {name} process has died.")
            if name == "scheduler":
                self._read_all()  # what it still said is of these requests, and of none that follow under the same rids
                manager.fail_all(failure)
            else:
                self._detokenizer_lost_at = self._detokenizer_lost_at or self.clock()
                manager.questions.fail(failure)
        elif name == "detokenizer" and process.state == "READY":
            known, self._detokenizer_pid = self._detokenizer_pid, process.pid
            if known not in (None, process.pid):
                self._read_all()
                manager.ask_replay(process.pid, self._detokenizer_lost_at)
            self._detokenizer_lost_at = 0.0

    def _make_manager(self) -> None:
        if self._manager is None and self._engine is not None and self._text is not None:
            self._manager = TokenizerManager(
                tokenizer=self._text.tokenizer,
                to_scheduler=self._to_scheduler,
                engine=self._engine,
                entry=self.entry,
                max_live=self.config.live_limit,
                max_unsent_bytes=self.config.max_unsent_bytes,
                ledger=Ledger(entry_name(self.entry), strict=self.config.strict_ledger),
                recorder=self.recorder,
                log_requests=self.config.log_requests,
                recent=self.recent,
                clock=self.clock,
            )

    @property
    def other_workers(self) -> list[int]:
        """The numbers of the entry workers beside this one that can answer."""
        numbers = [(entry_number(name), process.state) for name, process in self.processes.items()]
        return [number for number, phase in numbers if number not in (None, self.entry) and phase in ("READY", "DRAINING")]

    def to_worker(self, number: int) -> Sender:
        """The way to another entry worker."""
        assert self._to_workers is not None  # where there are others, the process has said how to reach them
        return self._to_workers(number)

    def answer_worker(self, message: WorkerReq) -> None:
        """Tell another worker how this one is, once all that was sent to this one is read."""
        self._read_all()
        if self._manager is not None:
            report = self.report(message.ledger, metrics=message.metrics)
            self.to_worker(message.entry).send(WorkerReply(message.id, report))

    def report(self, ledger: LedgerQuery | None = None, *, metrics: bool = False) -> WorkerReport:
        """How this worker is; with `ledger`, with its book; with `metrics`, with its measures.

        Raises:
            EngineDeadError: it is still loading.
        """
        if self._manager is None:
            raise EngineDeadError("The server is still loading.", code="loading")
        store = self.responses
        return msgspec.structs.replace(
            self._manager.report(ledger),
            stored_responses=len(store),
            stored_response_bytes=store.bytes,
            evicted_responses=store.evicted,
            measures=self.measures() if metrics else None,
        )

    def measures(self) -> Measures | None:
        """All that this worker counts; None: it cannot tell now."""
        store, manager = self.responses, self._manager
        more = [
            sample(families.STORED, len(store)),
            sample(families.STORED_BYTES, store.bytes),
            sample(families.EVICTED, store.evicted),
        ]
        if manager is not None:
            more += [
                sample(families.LIVE, manager.live_requests, "entry"),
                sample(families.LATE_ROWS, manager.late_rows_dropped),
                sample(families.STREAM_MISMATCHES, manager.endings.stream_mismatches),
                sample(families.MISMATCHES, manager.ledger.reconcile(), "entry"),
                *(sample(families.HELD, amount, "entry", kind) for kind, amount in manager.ledger.totals().items()),
            ]
        return self._tally.measures(more)

    @property
    def engine(self) -> EngineInfo | None:
        """What the scheduler's start resolved; None while loading."""
        return self._engine

    @property
    def started(self) -> TokenizerManager | None:
        """The manager, working or not; None while loading."""
        return self._manager

    @property
    def manager(self) -> TokenizerManager:
        """The manager of a server that can take requests.

        Raises:
            EngineDeadError: it cannot now, and why.
        """
        self.check_ready()
        assert self._manager is not None  # it is there once all processes are ready
        return self._manager

    @property
    def capacity(self) -> int:
        """Requests that may run and wait at a time: a call of more can never be admitted.

        Raises:
            EngineDeadError: not known yet.
        """
        capacity = self.manager.engine.max_running_requests + self.config.max_queued_requests
        return min(capacity, self.config.live_limit)

    @property
    def retry_after_s(self) -> int:
        """Seconds after which somebody who is refused now should come back."""
        return 1 if self._manager is None else self._manager.retry_after_s

    def check_ready(self) -> None:
        """Return if the server can take requests.

        Raises:
            EngineDeadError: it cannot now, and why.
        """
        if self.draining:
            raise EngineDeadError("The server is shutting down.", code="shutting_down")
        for name in (entry_name(self.entry), "scheduler", "detokenizer"):  # what other workers do is no matter of this one
            process = self.processes.get(name)
            if process is not None and process.state != "READY":
                raise EngineDeadError(
                    f"The {name} process is {process.state}; the server cannot take requests now.",
                    code="loading" if process.state == "STARTING" else "engine_dead",
                )
        if self._manager is None or not self.processes:
            raise EngineDeadError("The server is still loading.", code="loading")

    def check_alive(self) -> None:
        """Return if the server has started and is on its feet or getting up: nobody outside need restart it.

        Raises:
            EngineDeadError: it is still loading.
        """
        if not self._has_started:
            self.check_ready()

    @property
    def text(self) -> LoadedText:
        """Tokenizer, template and names.

        Raises:
            EngineDeadError: they are still loading.
        """
        if self._text is None:
            raise EngineDeadError("The server is still loading.", code="loading")
        return self._text

    @property
    def chat(self) -> ChatPrompts:
        """The chat templates.

        Raises:
            RequestError: the model has none.
        """
        if self.text.chat is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions, or start the server with --chat-template.",
                code="no_chat_template",
            )
        return self.text.chat

    def resolve_model(self, name: str) -> str:
        """The name to answer with for a request's `model`; an empty one means the served model.

        Raises:
            ModelNotFound: it is not served here.
        """
        names = self.text.names
        if name and name not in names:
            raise ModelNotFound(name[:100], names[0])  # a client's word, of any length
        return name or names[0]
