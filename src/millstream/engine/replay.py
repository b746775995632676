"""Replay: runs a recording through entry, scheduler and detokenizer of this version, and compares the bytes on the wire.

Called by `millstream replay` and by tests. The model's part is played back; all else is computed anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millstream.config import ServerConfig
from millstream.engine.core import Core
from millstream.engine.playback import Playback, says_something
from millstream.entry.http.app import App
from millstream.entry.tape import FORMAT, Call, Head, Line, Opened, Row, Tape, Tapes, Wire
from millstream.errors import StartupError
from millstream.messages import Abort, EngineInfo, TextRow, TokenizedGenerateReqInput

LIMIT_S = 120.0
_OWN = {  # what is this machine's, and not the recording's
    "entry_workers": 1, "record": None, "record_sample": 0.0, "record_failed": False, "log_requests": "none", "script": None,
    "scripted_step_ms": 0.0, "speculative_algorithm": None, "request_timeout_s": None, "sse_keep_alive_s": 3600.0,
    "api_key_file": None, "admin_api_key_file": None,
}  # fmt: skip
_IDS = re.compile(rb"\b(chatcmpl|cmpl|resp|msg|call|fc|rs|req|toolu|embd|score)[-_]?\w{12,}|\b[0-9a-f]{32}\b")
_NUMBERS = re.compile(
    rb'("(?:created|created_at|completed_at|e2e_latency|response_sent_to_client_ts|cached_tokens|cache_read_input_tokens|input_tokens|'
    rb'num_retractions|[a-z_]*_time|[a-z_]*latency)":\s*)[\d.]+'
)
_SIGNS_OF_LIFE = re.compile(rb"^(?::[^\n]*|event: ping\ndata: [^\n]*)\n\n", re.MULTILINE)


class NotReplayable(StartupError):
    """The recording, or what it needs, is not there or not whole."""


@dataclass(frozen=True)
class Recording:
    """A file's lines."""

    head: Head
    engine: EngineInfo
    call: Call
    rows: list[Row]
    wire: Wire
    body: bytes


@dataclass(frozen=True)
class Result:
    """What was written then and now, masked: ids, times and what depends on other requests."""

    status: tuple[int, int]
    before: bytes
    now: bytes
    is_equal: bool


def read_recording(path: Path) -> Recording:
    """Read a file that `--record` made.

    Raises:
        NotReplayable: it is none, or cannot be replayed.
    """
    try:
        lines: list[Any] = [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
        head, call, wire = lines[0], lines[1], lines[-1]
        requests = [
            msgspec.convert(line.request, TokenizedGenerateReqInput, str_keys=True)
            for line in lines
            if isinstance(line, Opened)
        ]
    except (OSError, ValueError, IndexError, RecursionError) as error:
        raise NotReplayable(f"{path} is not a recording: {error}") from None
    if not (isinstance(head, Head) and isinstance(call, Call) and isinstance(wire, Wire)) or head.format != FORMAT:
        raise NotReplayable(f"{path} is not a whole recording of format {FORMAT}")
    if head.privacy or wire.body is None:
        raise NotReplayable(f"{path} was made with --record-privacy: it has no text to compare")
    if head.engine is None:
        raise NotReplayable(f"{path} was made while the server loaded")
    rows = [line for line in lines if isinstance(line, Row)]
    if any(row.details is not None and row.details.prompt_logprobs is not None for row in rows):
        raise NotReplayable("log probabilities of prompts are not played back")
    if any(request.sampling.grammar for request in requests):
        raise NotReplayable("tokens that a grammar forced are not played back")
    return Recording(head, head.engine, call, rows, wire, wire.body)


def replay(recording: Recording) -> Result:
    """Run it again.

    Raises:
        NotReplayable: its options, model or tokenizer cannot be used here, or it does not come to an end.
    """
    try:
        options = {**recording.head.options, **_OWN}
        config = dataclasses.replace(msgspec.convert(options, ServerConfig), executor=_executor(recording.engine))
        player = _Player(recording)
        core = Core(config, player.playback)
    except (msgspec.ValidationError, StartupError) as error:
        raise NotReplayable(f"it cannot be set up here: {error}") from None
    player.core = core
    try:
        core.run(player.play()).result(LIMIT_S)
    except TimeoutError:
        raise NotReplayable(f"it did not end within {LIMIT_S:g} s") from None
    finally:
        core.close()
    return _compared(recording, player.tape.wire())


def _executor(engine: EngineInfo) -> Any:
    return "scripted" if engine.executor == "scripted" else "auto"


def masked(data: bytes) -> bytes:
    """An answer without what differs between two runs of the same."""
    data = _SIGNS_OF_LIFE.sub(b"", data)
    return _NUMBERS.sub(rb"\g<1>0", _IDS.sub(b"ID", data))


def _compared(recording: Recording, now: Wire) -> Result:
    before, again = masked(recording.body), masked(now.body or b"")
    ends = [row.finish for row in recording.rows if isinstance(row.finish, Abort) and row.finish.cause != "engine_error"]
    is_equal = before == again
    if ends or not recording.wire.complete:  # the end came from outside: what was written up to it must be the same
        is_equal = before.startswith(again) or again.startswith(before)
    status = recording.wire.status, now.status
    return Result(status, before, again, is_equal and status[0] == status[1])


class _Player:
    """One replay: an HTTP call whose client leaves where the recorded one did."""

    def __init__(self, recording: Recording) -> None:
        self.core: Core | None = None
        self.playback = Playback(recording.engine, recording.rows, self._cut)
        self.tape = _ReplayTape(self.playback)
        self._call = recording.call
        self._gone: asyncio.Event | None = None

    async def play(self) -> None:
        """Make the call, and wait for its end."""
        assert self.core is not None
        self._gone = asyncio.Event()
        service = self.core.service
        service.tapes = _OneTape(service.config, self.tape)
        body = msgspec.json.encode(self._call.body)
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])
        gone = self._gone

        async def receive() -> dict[str, Any]:
            if (message := next(asked, None)) is None:
                await gone.wait()
                message = {"type": "http.disconnect"}
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            """Its tape has it."""

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": self._call.method, "path": self._call.path, "query_string": b"", "headers": headers}
        await App(service)(scope, receive, send)

    def _cut(self, number: int, finish: Abort | None) -> None:
        """In the scheduler's thread: nothing goes on with a request, for somebody ended it."""
        assert self.core is not None
        self.core.run(self._end(number, finish))

    async def _end(self, number: int, finish: Abort | None) -> None:
        assert self.core is not None and self._gone is not None
        manager = self.core.service.started
        if finish is None or finish.cause in ("client_gone", "slow_reader") or manager is None:
            self._gone.set()
        else:
            manager.abort(self.tape.rids[number], finish.cause)


class _ReplayTape(Tape):
    """Tells the playback what happens."""

    def __init__(self, playback: Playback) -> None:
        super().__init__()
        self.rids: list[str] = []
        self._playback = playback

    def opened(self, requests: Sequence[TokenizedGenerateReqInput]) -> int:
        first = super().opened(requests)
        for number, request in enumerate(requests, first):
            self.rids.append(request.rid)
            self._playback.opened(request.rid, number)
        return first

    def row(self, number: int, row: TextRow) -> None:
        super().row(number, row)
        if says_something(Row(number, row.token_ids, row.finish)):
            self._playback.took()


class _OneTape(Tapes):
    """Gives the one tape, and writes none."""

    def __init__(self, config: ServerConfig, tape: Tape) -> None:
        super().__init__(config)
        self._tape = tape

    def begin(self, *, is_asked: bool) -> Tape:
        return self._tape

    def end(self, tape: Tape, engine: EngineInfo | None) -> None:
        """It is compared."""
