"""A whole server in one thread: the real entry, scheduler and detokenizer, joined by links that deliver when a test says so."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from millstream.config import ServerConfig
from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.entry.http.app import App
from millstream.entry.service import LoadedText, Service
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.execution.interface import Executor
from millstream.kv.pool import KVPool
from millstream.messages import (
    BatchStrOutput,
    EngineInfo,
    ProcessState,
    ServerState,
    ToDetokenizer,
    ToEntry,
    ToScheduler,
)
from millstream.observe.ledger import Ledger
from millstream.scheduler.admission import Limits
from millstream.scheduler.scheduler import Scheduler
from millstream.text.tokenizer import load_scripted_tokenizer
from tests.support.asgi import Call, Response

TOKENIZER = load_scripted_tokenizer()
PROCESSES = ("entry-0", "scheduler", "detokenizer")
TURNS = 40  # of the event loop: more than any chain of tasks here is long
T = TypeVar("T")


class Link:
    """One ordered channel. What is sent waits, encoded as on the wire, until it is delivered; a cut link loses everything."""

    def __init__(self, types: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(types)
        self._waiting: deque[bytes] = deque()
        self._is_cut = False
        self._number = 1
        self.receiver_pid = 1
        self.deliver_to: Callable[[Any], None] = lambda message: None

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, message: Any) -> int:
        if not self._is_cut:
            self._waiting.append(msgspec.msgpack.encode(message))
        return self.connect()

    def connect(self) -> int:
        """The number of the connection: there is one, until it is cut."""
        return 0 if self._is_cut else self._number

    def replace_receiver(self) -> None:
        """The receiver died with all that it had not taken, and another took its place."""
        self._waiting.clear()
        self._number += 1
        self.receiver_pid += 1

    def deliver(self) -> None:
        self.deliver_to(self._decoder.decode(self._waiting.popleft()))

    def cut(self) -> None:
        self._is_cut = True
        self._waiting.clear()


class Lines(logging.Handler):
    """The line of each request's end, as (rid, cause)."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        self.ends.append((str(record.args[0]), str(record.args[3])))


class WholeServer:
    """Everything between a request's body and its answer. Made and used in one thread; `close` at the end."""

    def __init__(self, executor: Executor, config: ServerConfig, *, share_prefixes: bool, chunk: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.links = {
            "requests": Link(ToScheduler),
            "verdicts": Link(ToEntry),
            "tokens": Link(ToDetokenizer),
            "texts": Link(ToEntry),
        }
        capabilities = executor.capabilities
        self.engine = EngineInfo(
            vocab_size=capabilities.vocab_size,
            context_length=min(capabilities.context_length, capabilities.num_pages * capabilities.page_size),
            eos_token_ids=sorted(capabilities.eos_token_ids),
            num_pages=capabilities.num_pages,
            page_size=capabilities.page_size,
            max_running_requests=config.max_running_requests,
            executor="test",
            hidden_size=capabilities.hidden_size,
            has_logprobs=capabilities.has_logprobs,
        )
        self.ledgers = {name: Ledger(name, strict=True) for name in ("scheduler", "detokenizer")}
        self.pool = KVPool(num_pages=self.engine.num_pages, page_size=self.engine.page_size)
        self.scheduler = Scheduler(
            executor=executor,
            tokenizer=TOKENIZER,
            pool=self.pool,
            share_prefixes=share_prefixes,
            eos_token_ids=capabilities.eos_token_ids,
            limits=Limits(
                max_running_requests=config.max_running_requests,
                max_queued_requests=config.max_queued_requests,
                max_queued_tokens=1 << 20,
                chunked_prefill_size=chunk,
                context_length=self.engine.context_length,
                vocab_size=self.engine.vocab_size,
                hidden_size=self.engine.hidden_size,
            ),
            to_detokenizer=self.links["tokens"],
            to_entry=lambda entry: self.links["verdicts"],
            ledger=self.ledgers["scheduler"],
        )
        self._config = config
        self.detokenizer = self._new_detokenizer()
        self.service = Service(config=config, to_scheduler=self.links["requests"], read_all=self._read_texts)
        self.service.text_loaded(LoadedText(tokenizer=TOKENIZER, chat=None, names=("tiny",)))
        self.processes_are()
        self.ledgers["entry"] = self.manager.ledger
        self.manager.endings.due._grace_s = math.inf  # what is late is so when a test says it
        self.app = App(self.service)
        self.dead: str | None = None
        self.accepted: list[int] = []  # slots, as the scheduler said
        self.final_rows: list[int] = []
        self.links["requests"].deliver_to = self.scheduler.handle
        self.links["verdicts"].deliver_to = self._take_verdicts
        self.links["texts"].deliver_to = self._take_texts
        self.links["tokens"].deliver_to = lambda message: self.detokenizer.handle(message)
        self.lines = Lines()
        self._log = logging.getLogger("millstream.request")
        self._level, self._log.propagate = self._log.level, False
        self._log.setLevel(logging.INFO)
        self._log.addHandler(self.lines)

    @property
    def manager(self) -> TokenizerManager:
        manager = self.service.started
        assert manager is not None
        return manager

    def processes_are(self, **phases: Any) -> None:
        """The supervisor's news: all READY but for `phases`."""
        pids = {"detokenizer": self.links["tokens"].receiver_pid}
        states = {name: ProcessState(pid=pids.get(name, 1), state=phases.get(name, "READY")) for name in PROCESSES}
        self.service.update(ServerState(processes=states, engine=self.engine))

    def kill_scheduler(self) -> None:
        """The scheduler is gone, with all that was on the way to it and from it."""
        self.dead = "scheduler"
        for name in ("requests", "verdicts", "tokens"):
            self.links[name].cut()
        self.detokenizer.scheduler_gone()
        self.in_loop(lambda: self.processes_are(scheduler="FAILED"))

    def replace_detokenizer(self) -> None:
        """The detokenizer is gone, with all that was on the way to it, and another takes its place."""
        self.in_loop(lambda: self.processes_are(detokenizer="FAILED"))
        self.links["tokens"].replace_receiver()
        self.ledgers["detokenizer"] = Ledger("detokenizer", strict=True)
        self.detokenizer = self._new_detokenizer()
        self.in_loop(self.processes_are)

    def _new_detokenizer(self) -> DetokenizerManager:
        return DetokenizerManager(
            tokenizer=TOKENIZER,
            to_entry=lambda entry: self.links["texts"],
            max_states=self._config.max_detokenizer_states,
            ledger=self.ledgers["detokenizer"],
        )

    def _read_texts(self) -> None:
        while len(self.links["texts"]):
            self.links["texts"].deliver()

    def in_loop(self, act: Callable[[], T]) -> T:
        """Do something on the event loop and let everything that follows from it happen."""

        async def turn() -> T:
            result = act()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(turn())

    def deliver(self, name: str) -> None:
        """Deliver the next message of one link."""
        self.in_loop(self.links[name].deliver)

    def run_dry(self) -> None:
        """Deliver and step until nothing is on its way and the scheduler has no work."""
        while True:
            for name, link in self.links.items():
                while len(link):
                    self.deliver(name)
            has_work = self.dead != "scheduler" and self.scheduler.step()
            if not has_work and not any(map(len, self.links.values())):
                return

    def ask(self, path: str, *, query: bytes = b"", method: str = "GET") -> Response:
        """One request that needs nothing but the links."""
        call = self.in_loop(lambda: Call(self.app, path, b"", method=method, query=query))
        while not call.task.done():
            for name, link in self.links.items():
                while len(link):
                    self.deliver(name)
        return self.finished(call.response())

    def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of what must be able to end now."""
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self) -> None:
        """Take the log back and end the loop."""
        self._log.removeHandler(self.lines)
        self._log.setLevel(self._level)
        self._log.propagate = True
        self.manager.close()
        self.loop.close()

    def _take_verdicts(self, message: Any) -> None:
        self.accepted += message.accepted
        self.manager.handle(message)

    def _take_texts(self, message: Any) -> None:
        if isinstance(message, BatchStrOutput):
            self.final_rows += [row.slot for row in message.rows if row.finish is not None]
        self.manager.handle(message)
