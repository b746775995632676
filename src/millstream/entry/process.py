"""An entry worker: HTTP at once, then the tokenizer, then requests, until the supervisor says stop.

Run by `launch.child`. Everything but encoding and rendering of long prompts happens on one event loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import threading
from typing import Any

import uvloop

from millstream.checkpoint.locate import configured_source
from millstream.config import ChildConfig, ServerConfig
from millstream.entry import records
from millstream.entry.failure import failure_of_cause, failure_of_death
from millstream.entry.http.app import App
from millstream.entry.http.server import EntryServer, raise_descriptor_limit
from millstream.entry.openai.responses.lookup import answer_worker
from millstream.entry.service import LoadedText, Service, prepare_text
from millstream.errors import StartupError
from millstream.ipc.address import socket_address
from millstream.ipc.channel import PullChannel, PushChannel, SenderGone
from millstream.ipc.control import ControlLink, PeerGone
from millstream.ipc.entries import EntryChannels
from millstream.ipc.pulse import BEAT_S, Pulse
from millstream.messages import Ready, RequestsReq, ResponseReq, ServerState, SetLogLevel, Shutdown, ToEntry, WorkerReq
from millstream.observe.log import set_level
from millstream.observe.otel import open_export
from millstream.text.tokenizer import load_configured_tokenizer

log = logging.getLogger(__name__)

ABORT_GRACE_S = 1.5  # what aborted requests get to end by themselves, after the drain
SWITCH_INTERVAL_S = 0.001  # a worker thread in Python code, such as a template, may keep the event loop waiting this long


def run(config: ChildConfig, control: ControlLink) -> None:
    """Serve HTTP until told to stop.

    Raises:
        StartupError: tokenizer or template cannot be loaded.
        PeerGone: the supervisor is gone.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_descriptor_limit()
    assert config.listen_fd is not None  # the supervisor has bound it
    sock = socket.socket(fileno=config.listen_fd)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Process(config, control, sock).serve())


def load_text(config: ServerConfig) -> LoadedText:
    """Load tokenizer and chat template.

    Raises:
        StartupError: one of them cannot be used.
    """
    return prepare_text(config, load_configured_tokenizer(config, configured_source(config)))


class _Process:
    """Wires one entry process and runs it once."""

    def __init__(self, config: ChildConfig, control: ControlLink, sock: socket.socket) -> None:
        self._config = config.server
        self._name = config.name
        self._control = control
        self._socket = sock
        self._may_listen = asyncio.Event()
        if not config.is_successor:  # a first worker says 503 while all loads; a later one lets its elders answer until then
            self._may_listen.set()
        self._pulse = Pulse(control)
        self._inbox = PullChannel(socket_address(config.socket_dir, config.name), ToEntry)
        self._to_scheduler = PushChannel(socket_address(config.socket_dir, "scheduler"), config.name)
        self._to_workers = EntryChannels(config.socket_dir, config.name)
        endpoint = config.server.otlp_endpoint
        self._export = None if endpoint is None else open_export(endpoint, config.name)
        self._service = Service(
            config=config.server,
            to_scheduler=self._to_scheduler,
            to_workers=self._to_workers,
            entry=config.entry,
            has_started=config.is_successor,
            read_all=self._inbox.deliver_all,
            export=None if self._export is None else self._export.add,
            tell=control.note,
        )
        self._server = EntryServer(App(self._service), self._config)

    async def serve(self) -> None:
        """The whole life of the process."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[Shutdown] = loop.create_future()
        loop.add_reader(self._control.fileno(), self._read_control, stop)
        self._inbox.pump(loop, self._on_message)
        http = asyncio.create_task(self._listen())
        loading = asyncio.create_task(asyncio.to_thread(load_text, self._config))
        try:
            await asyncio.wait((loading, stop, http), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                text = loading.result()
                self._service.text_loaded(text)
                gc.collect()
                gc.freeze()  # what is loaded stays: the collector need not walk it between two rows
                # no start waits for it; it is at work while the scheduler still loads the model
                threading.Thread(target=text.tokenizer.load_fast_encoder, name="fast-encoder", daemon=True).start()
                self._control.send(Ready(process="entry"))
                self._pulse.start()
                self._note_progress(loop)
                await asyncio.wait((stop, http), return_when=asyncio.FIRST_COMPLETED)
            if not stop.done():
                raise StartupError("the HTTP server ended by itself.")
            await self._drain(stop.result())
        finally:
            self._pulse.stop()
            self._server.should_exit = True
            self._may_listen.set()
            loading.cancel()
            await asyncio.gather(http, loading, return_exceptions=True)
            loop.remove_reader(self._control.fileno())
            self._inbox.close()
            self._to_scheduler.close()
            self._to_workers.close()
            if self._service.started is not None:
                self._service.started.close()
            if self._export is not None:
                self._export.close()

    async def _listen(self) -> None:
        await self._may_listen.wait()
        await self._server.serve(sockets=[self._socket])

    def _note_progress(self, loop: asyncio.AbstractEventLoop) -> None:
        """An event loop that comes by here gets on."""
        self._pulse.progress += 1
        loop.call_later(BEAT_S, self._note_progress, loop)

    def _read_control(self, stop: asyncio.Future[Shutdown]) -> None:
        try:
            for message in self._control.receive():
                if isinstance(message, ServerState):
                    self._service.update(message)
                    own = message.processes.get(self._name)
                    if own is not None and own.state == "READY":
                        self._may_listen.set()  # from here on a successor does not say any more that it is loading
                elif isinstance(message, SetLogLevel):
                    set_level(message.level)
                elif not stop.done():
                    self._service.draining = True
                    stop.set_result(message)
        except PeerGone as error:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            if not stop.done():
                stop.set_exception(error)

    def _on_message(self, message: Any) -> None:
        manager = self._service.started
        if isinstance(message, SenderGone):
            return  # the supervisor says what that means for the whole server
        if manager is None:
            log.error("a message came before the manager was made: %s", type(message).__name__)
            return
        if isinstance(message, WorkerReq):
            asyncio.get_running_loop().call_soon(self._service.answer_worker, message)  # not while we read: it reads, too
            return
        if isinstance(message, RequestsReq):
            records.answer_worker(self._service, message)
            return
        if isinstance(message, ResponseReq):
            self._service.responses.run(answer_worker(self._service, message))
            return
        try:
            manager.handle(message)
        except Exception:
            # one bad message must not cost the others of the same read
            log.exception("a %s could not be handled", type(message).__name__)

    async def _drain(self, shutdown: Shutdown) -> None:
        """Let live requests end for `drain_s`, abort the rest, and give those a moment to say so."""
        manager = self._service.started
        if manager is None:
            return
        if shutdown.has_failed:
            log.error("the server cannot go on; ending %d requests", manager.live_requests)
            manager.fail_all(failure_of_death("The server has failed and stops."))
            await manager.registry.wait_idle(ABORT_GRACE_S)
            return
        if manager.live_requests:
            log.info("draining %d requests for up to %g s", manager.live_requests, shutdown.drain_s)
        if not await manager.registry.wait_idle(shutdown.drain_s):
            log.warning("aborting %d requests that did not end in time", len(manager.abort_all("drain")))
            if not await manager.registry.wait_idle(ABORT_GRACE_S):
                log.warning("ending %d requests that the engine did not end", manager.live_requests)
                manager.fail_all(failure_of_cause("drain"))
