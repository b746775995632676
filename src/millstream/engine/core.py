"""Core: the managers of a whole server as two threads of this process. Made and closed by `Engine`.

One thread runs an event loop, with the TokenizerManager and the DetokenizerManager on it; the other the scheduler with its
executor. They are the objects that the processes of a server run, joined by `channels` in place of sockets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from millstream.checkpoint.locate import SCRIPTED_NAMES, configured_source
from millstream.config import ServerConfig
from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.engine.channels import Inbox, LoopChannel
from millstream.entry.due_ends import END_GRACE_S
from millstream.entry.service import Service, prepare_text
from millstream.errors import EngineDeadError
from millstream.execution.interface import Executor
from millstream.execution.registry import load_executor
from millstream.messages import EngineInfo, ProcessState, ServerState, ToDetokenizer, ToEntry, ToScheduler
from millstream.messages.control import ProcessPhase
from millstream.observe.ledger import Ledger
from millstream.scheduler.build import build_scheduler, engine_info
from millstream.scheduler.scheduler import Scheduler
from millstream.text.tokenizer import load_configured_tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_S = 2 * END_GRACE_S  # what aborted requests get to end in: an end that does not come in half of that is made here


class Core:
    """Loads in `__init__`, works until `close`. `service` belongs to the event loop: everything of it goes through `run`.

    Raises:
        StartupError: an option, the model or the tokenizer cannot be used.
    """

    def __init__(self, config: ServerConfig, executor: Executor | None = None) -> None:
        config.check()
        source = configured_source(config)
        names = config.served_model_name or (SCRIPTED_NAMES if source is None else source.names)
        config = dataclasses.replace(config, served_model_name=names, max_recent_requests=0)  # nobody could look at them
        tokenizer = load_configured_tokenizer(config, source)
        text = prepare_text(config, tokenizer)
        self._executor = executor or load_executor(config, source)
        self.info = engine_info(config, self._executor, tokenizer)
        self._is_closed = False
        self._pid = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._inbox = Inbox(ToScheduler)
        self.service = Service(config=config, to_scheduler=self._inbox)
        to_entry = LoopChannel(ToEntry, self._loop, self._take)
        detokenizer = DetokenizerManager(
            tokenizer=tokenizer,
            to_entry=lambda entry: to_entry,
            max_states=config.max_detokenizer_states,
            ledger=Ledger("detokenizer", strict=config.strict_ledger),
        )
        scheduler = build_scheduler(
            config,
            self.info,
            executor=self._executor,
            tokenizer=tokenizer,
            to_detokenizer=LoopChannel(ToDetokenizer, self._loop, detokenizer.handle),
            to_entry=lambda entry: to_entry,
        )
        self.service.text_loaded(text)
        self.service.update(_state("READY", self.info))
        # daemons: a program that ends without `close` must not hang
        self._threads = [
            threading.Thread(target=self._serve, name="millstream-entry", daemon=True),
            threading.Thread(target=self._schedule, args=(scheduler,), name="millstream-scheduler", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the event loop. Never blocks.

        Raises:
            EngineDeadError: the core is closed, or this process is a fork of the one that has it.
        """
        if self._is_closed or self._is_elsewhere:
            work.close()
            if self._is_closed:
                raise EngineDeadError("The engine is shut down.", code="shutting_down")
            raise EngineDeadError("The engine works in the process that made it; a fork of that has none.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Abort what runs, stop both threads and free the model. What comes after is refused; to close twice does no harm.

        In a fork of its process there is nothing to close. Where the garbage collector closes it in one of the threads, which
        cannot wait for themselves, another one does it.
        """
        if self._is_closed or self._is_elsewhere:
            return
        if threading.current_thread() in self._threads:
            threading.Thread(target=self.close, name="millstream-close").start()
            return
        ended = self.run(self._end_all())
        self._is_closed = True
        ended.result()
        self._inbox.close()
        self._threads[1].join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._executor.close()

    @property
    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._pid

    async def _end_all(self) -> None:
        self.service.draining = True
        manager = self.service.started
        assert manager is not None  # it was made with the core
        manager.abort_all("drain")
        await manager.registry.wait_idle(DRAIN_S)
        manager.close()

    def _take(self, message: Any) -> None:
        manager = self.service.started
        assert manager is not None
        manager.handle(message)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _schedule(self, scheduler: Scheduler) -> None:
        try:
            while (messages := self._inbox.receive(scheduler.wait_s)) is not None:
                for message in messages:
                    scheduler.handle(message)
                scheduler.step()
            scheduler.close()
        except BaseException:  # an executor of one's own may raise anything, and this thread is all there is
            log.exception("the scheduler has failed")
            self._loop.call_soon_threadsafe(self.service.update, _state("FAILED", self.info))


def _state(scheduler: ProcessPhase, info: EngineInfo) -> ServerState:
    """What a supervisor would say."""
    phases: dict[str, ProcessPhase] = {"entry-0": "READY", "scheduler": scheduler, "detokenizer": "READY"}
    return ServerState(processes={name: ProcessState(pid=1, state=phase) for name, phase in phases.items()}, engine=info)
