"""GrammarChecker: says, before a request is dispatched, whether its grammar can be compiled. Owned by an entry worker.

Each grammar is compiled in a process made for that (`worker`), which is killed when it takes too long, and may die as it likes.
What was found is kept, so that the same grammar is compiled once. It never compiles anything in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import LifoQueue

import msgspec

from millstream.errors import OverloadError, RequestError
from millstream.grammar.limits import MAX_COMPILE_S, MAX_SOURCE_BYTES
from millstream.grammar.vocabulary import Vocabulary
from millstream.grammar.wire import Proof, receive, send
from millstream.messages.grammar import GrammarSpec

NUM_WORKERS = 2  # one that is stuck leaves the other
MAX_PENDING = 64  # grammars that are compiled or wait for it
MAX_KNOWN = 512
MAX_KNOWN_BYTES = 16 << 20
START_S = 60.0  # for a worker to load
END_S = 10.0  # for one that has closed its output to be gone


class GrammarChecker:
    """`vocabulary` is called once, when the first grammar comes."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, compile_s: float = MAX_COMPILE_S) -> None:
        self._vocabulary = vocabulary
        self._compile_s = compile_s
        self._known: OrderedDict[tuple[str, str], Proof] = OrderedDict()
        self._num_known_bytes = 0
        self._pending: dict[tuple[str, str], asyncio.Future[Proof]] = {}
        self._threads = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="grammar")
        self._idle: LifoQueue[_Worker] = LifoQueue()  # the one that has started, if one has
        self._is_closed = False
        for _ in range(NUM_WORKERS):
            self._idle.put(_Worker())

    async def check(self, spec: GrammarSpec) -> GrammarSpec:
        """Return `spec` with its checked form.

        Raises:
            RequestError: it is wrong, or compiling it takes more than the limits allow; names the field and the place in it.
            OverloadError: too many grammars are being compiled.
        """
        if len(spec.source.encode()) > MAX_SOURCE_BYTES:
            size = len(spec.source.encode())
            raise RequestError(f"{spec.param} has {size} bytes; at most {MAX_SOURCE_BYTES} are allowed.", param=spec.param)
        key = (spec.kind, spec.source)
        proof = self._known.get(key)
        if proof is not None:
            self._known.move_to_end(key)
        else:
            proof = await asyncio.shield(self._prove(key, spec))
        if proof.error:
            param = spec.param
            if proof.place:  # in a turn it is told from the request on: a turn is made of several fields
                param = proof.place if spec.kind == "turn" else f"{spec.param}.{proof.place}"
            raise RequestError(f"`{param}` cannot be used: {proof.error}.", param=param, code="invalid_grammar")
        return msgspec.structs.replace(spec, checked=proof.grammar)

    def close(self) -> None:
        """Kill the workers."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):
            while not self._idle.empty():
                self._idle.get_nowait().kill()

    def _prove(self, key: tuple[str, str], spec: GrammarSpec) -> asyncio.Future[Proof]:
        """The proof under way: those who ask for the same wait for the same. It goes on when nobody waits any more."""
        job = self._pending.get(key)
        if job is None:
            if len(self._pending) >= MAX_PENDING:
                raise OverloadError(f"{MAX_PENDING} grammars are being compiled. Try again later.")
            job = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._threads, self._run, spec))
            self._pending[key] = job
            job.add_done_callback(lambda done: self._note(key, done))
        return job

    def _note(self, key: tuple[str, str], job: asyncio.Future[Proof]) -> None:
        del self._pending[key]
        if job.cancelled() or job.exception() is not None or not job.result().is_certain:
            return
        self._known[key] = job.result()
        self._num_known_bytes += _size(key, job.result())
        while len(self._known) > MAX_KNOWN or (self._num_known_bytes > MAX_KNOWN_BYTES and len(self._known) > 1):
            old, proof = self._known.popitem(last=False)
            self._num_known_bytes -= _size(old, proof)

    def _run(self, spec: GrammarSpec) -> Proof:
        """In a thread: have an idle worker prove it."""
        worker = self._idle.get()
        try:
            return worker.prove(spec, self._vocabulary, self._compile_s)
        finally:
            self._idle.put(worker)
            if self._is_closed:
                worker.kill()


class _Worker:
    """A process, started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def prove(self, spec: GrammarSpec, vocabulary: Callable[[], Vocabulary], compile_s: float) -> Proof:
        """Ask the process. One that takes too long or dies is replaced; who was killed by somebody else is asked once more.

        Raises:
            OverloadError: it does not start, or is killed again.
        """
        for _ in range(2):
            if self._process is not None and self._process.poll() is not None:
                self.kill()  # it died with nothing to do
            if self._process is None:
                self._start(vocabulary())
            data, is_late = self._ask(spec, compile_s)
            if data is not None:
                return msgspec.msgpack.decode(data, type=Proof)
            if is_late:
                self.kill()
                why = f"to compile it takes more than {compile_s:g} s"
                return Proof(error=f"it is too deep or too large: {why}", is_certain=False)
            if self.kill(wait_s=END_S) != -signal.SIGKILL:
                return Proof(error="it is too deep or too large: to compile it takes too much memory", is_certain=False)
        raise OverloadError("Grammars cannot be compiled now. Try again later.")

    def _start(self, vocabulary: Vocabulary) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millstream.grammar.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._ask(vocabulary, START_S)[0] is None:
            self.kill()
            raise OverloadError("Grammars cannot be compiled now. Try again later.")

    def kill(self, wait_s: float = 0.0) -> int | None:
        """End the process, if there is one; what it ended by. With `wait_s` it is ending already, and has so long."""
        process, self._process = self._process, None
        if process is None:
            return None
        if wait_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
        process.kill()
        process.communicate()
        return process.returncode

    def _ask(self, message: Vocabulary | GrammarSpec, limit_s: float) -> tuple[bytes | None, bool]:
        """The answer; None where there is none in time, or the process is gone; and whether it was killed for being late."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            send(process.stdin, message)
            return receive(process.stdout), late.is_set()
        except OSError:
            return None, late.is_set()
        finally:
            timer.cancel()


def _size(key: tuple[str, str], proof: Proof) -> int:
    return len(key[1]) + len(proof.grammar) + len(proof.error)
