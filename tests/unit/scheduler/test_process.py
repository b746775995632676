"""The scheduler process, run in a thread over real sockets with the scripted executor."""

from __future__ import annotations

import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.config import ChildConfig, ServerConfig
from millstream.errors import StartupError
from millstream.ipc.address import socket_address
from millstream.ipc.channel import PullChannel, PushChannel
from millstream.ipc.control import ControlLink, PeerGone
from millstream.messages import (
    Abort,
    AdmissionOutput,
    BatchTokenIDOutput,
    FromSupervisor,
    Length,
    Ready,
    SamplingParams,
    Shutdown,
    Timing,
    ToDetokenizer,
    ToEntry,
    TokenizedGenerateReqInput,
    ToSupervisor,
)
from millstream.scheduler.process import run
from tests.support.rows import token_rows

WAIT_MS = 20_000


class Bench:
    """The process's neighbours: supervisor, entry and detokenizer in one."""

    def __init__(self, directory: Path, **options: object) -> None:
        ours, theirs = socket.socketpair()
        self.control = ControlLink(ours, ToSupervisor)
        self.detokenizer = PullChannel(socket_address(directory, "detokenizer"), ToDetokenizer)
        self.entry = PullChannel(socket_address(directory, "entry-0"), ToEntry)
        self.error: BaseException | None = None
        server = ServerConfig(executor="scripted", **options)  # type: ignore[arg-type]
        config = ChildConfig(server=server, socket_directory=str(directory), name="scheduler")

        def target() -> None:
            link = ControlLink(theirs, FromSupervisor)
            try:
                run(config, link)
            except BaseException as error:  # noqa: BLE001  # looked at by the test
                self.error = error
            finally:
                link.close()

        self.thread = threading.Thread(target=target)
        self.thread.start()
        self.scheduler = PushChannel(socket_address(directory, "scheduler"))

    def wait_ready(self) -> Ready:
        poller = select.poll()
        poller.register(self.control.fileno(), select.POLLIN)
        assert poller.poll(WAIT_MS)
        (ready,) = self.control.receive()
        assert isinstance(ready, Ready)
        return ready

    def next_from(self, channel: PullChannel) -> list[object]:
        messages: list[object] = []
        while not messages:
            waited = time.monotonic()
            messages, _ = channel.receive(WAIT_MS / 1000)
            assert messages or time.monotonic() - waited < WAIT_MS / 1000
        return messages

    def submit(self, rid: str, max_new: int) -> None:
        self.scheduler.send(
            TokenizedGenerateReqInput(
                rid=rid, input_ids=[5, 6], sampling=SamplingParams(seed=1), max_new_tokens=max_new, timing=Timing()
            )
        )

    def close(self) -> None:
        self.control.close()
        self.thread.join(WAIT_MS / 1000)
        assert not self.thread.is_alive()
        self.scheduler.close()
        self.detokenizer.close()
        self.entry.close()


@contextmanager
def bench(**options: object) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="ms") as directory:
        at = Bench(Path(directory), **options)
        try:
            yield at
        finally:
            at.close()


def test_it_reports_ready_serves_and_ends_on_shutdown() -> None:
    with bench(context_length=64, max_total_tokens=48, page_size=8) as at:
        engine = at.wait_ready().engine
        assert engine is not None
        assert (engine.executor, engine.page_size, engine.num_pages, engine.context_length) == ("scripted", 8, 6, 48)
        assert engine.eos_token_ids
        at.submit("r", 3)
        assert at.next_from(at.entry) == [AdmissionOutput(accepted=[0])]
        batches: list[BatchTokenIDOutput] = []
        while not ((rows := token_rows(batches)) and rows[-1].finish):
            batches += at.next_from(at.detokenizer)
        assert rows[-1].finish == Length(3)
        at.control.send(Shutdown())
        at.thread.join(WAIT_MS / 1000)
        assert not at.thread.is_alive()
        assert at.error is None


def test_a_shutdown_ends_what_still_runs() -> None:
    with bench(scripted_step_ms=5) as at:
        at.wait_ready()
        at.submit("r", 100_000)
        at.next_from(at.entry)
        at.control.send(Shutdown())
        at.thread.join(WAIT_MS / 1000)
        rows = [row for message in at.next_from(at.detokenizer) for row in message.rows]
        assert isinstance(rows[-1].finish, Abort)
        assert rows[-1].finish.cause == "drain"


def test_it_ends_when_the_supervisor_is_gone() -> None:
    with bench() as at:
        at.wait_ready()
    assert isinstance(at.error, PeerGone)


def test_a_missing_script_or_template_is_a_start_up_error(tmp_path: Path) -> None:
    for options in ({"script": str(tmp_path / "none.json")}, {"chat_template": str(tmp_path / "none.jinja")}):
        with bench(**options) as at:
            at.thread.join(WAIT_MS / 1000)
        assert isinstance(at.error, StartupError)
        assert "none" in str(at.error)


@pytest.mark.parametrize("with_cache", [True, False])
def test_the_prefix_cache_can_be_switched_off(with_cache: bool) -> None:
    with bench(disable_radix_cache=not with_cache, page_size=1) as at:
        at.wait_ready()
        usages = []
        for rid in "ab":
            at.submit(rid, 1)
            for message in at.next_from(at.detokenizer):
                assert isinstance(message, BatchTokenIDOutput)
                usages.append(message.rows[0].usage.cached_tokens)
        assert usages == [0, 1 if with_cache else 0]
