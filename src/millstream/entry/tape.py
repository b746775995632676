"""Tape: what crossed the borders for one HTTP call, kept as JSON lines so that `millstream replay` can run it again.

The app begins a tape before a call's body is read and ends it with the answer; in between exchange, TokenizerManager and
generation tell it what passes. A call without a tape tells nobody. Bounded in bytes and files; readable by the owner alone.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, MutableMapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from millstream import __version__
from millstream.config import SECRETS, ServerConfig
from millstream.entry.tape_privacy import Mask
from millstream.messages import EngineInfo, FinishReason, RowDetails, TextRow, TokenizedGenerateReqInput
from millstream.messages.finish import Abort

log = logging.getLogger(__name__)

HEADER = b"x-millstream-record"
FORMAT = 1
MAX_BYTES = 16 << 20  # of one call


class Head(Struct, tag="head"):
    """The server that made it: its options, without secrets, and what its executor is."""

    format: int
    version: str
    created: float
    options: dict[str, Any]
    engine: EngineInfo | None
    privacy: bool


class Call(Struct, tag="call"):
    """The HTTP request."""

    method: str
    path: str
    body: Any  # its JSON


class Opened(Struct, tag="request"):
    """A request of the call, as the scheduler got it; they are numbered in this order."""

    request: Any


class Row(Struct, tag="row"):
    """What the answer took of request `number` at once: the ids of one step, or of several that came while it waited."""

    number: int
    token_ids: list[int]
    finish: FinishReason | None = None
    details: RowDetails | None = None


class Wire(Struct, tag="wire"):
    """The answer: its status and bytes, or where text must not be kept their digest. Not complete: the client left before."""

    status: int
    size: int
    digest: str
    body: bytes | None
    complete: bool


Line = Head | Call | Opened | Row | Wire


class Tape:
    """One call's. Told in order; `lines` are what was told."""

    def __init__(self, mask: Mask | None = None, *, is_chosen: bool = True) -> None:
        self.is_chosen = is_chosen  # kept also if the call ends well
        self.lines: list[bytes] = []  # encoded when they are told: what they tell of goes on changing
        self.status = 0
        self.body = bytearray()
        self.is_complete = False
        self.is_bad = False
        self.size = 0
        self._mask = mask
        self._num_opened = 0

    def asked(self, method: str, path: str, body: bytes) -> None:
        """The body was read."""
        try:
            value = msgspec.json.decode(body)
            value = self._mask.text(value) if self._mask else value
        except (ValueError, RecursionError):
            value = None  # what is no JSON, or nested too deeply, is answered by the same error whatever it is
        self._add(Call(method, path, value))

    def opened(self, requests: Sequence[TokenizedGenerateReqInput]) -> int:
        """Requests are dispatched; returns the number of the first."""
        first, self._num_opened = self._num_opened, self._num_opened + len(requests)
        for request in requests:
            told = msgspec.to_builtins(request)
            self._add(Opened(self._mask.text(told) if self._mask else told))
        return first

    def row(self, number: int, row: TextRow) -> None:
        """The answer takes a row."""
        self.is_bad = self.is_bad or (isinstance(row.finish, Abort) and row.finish.cause == "engine_error")
        if self._mask:
            self._add(Row(number, self._mask.ids(row.token_ids), self._mask.finish(row.finish)))
        else:
            self._add(Row(number, row.token_ids, row.finish, row.details))

    def wrote(self, message: MutableMapping[str, Any]) -> None:
        """A part of the answer went to the connection."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.is_bad = self.is_bad or self.status >= 500
        else:
            self.size += len(message.get("body", b""))
            if self.size <= MAX_BYTES:
                self.body += message.get("body", b"")
            self.is_complete = not message.get("more_body", False)

    def wire(self) -> Wire:
        """The answer as it was written."""
        body = bytes(self.body)
        return Wire(self.status, len(body), sha256(body).hexdigest(), None if self._mask else body, self.is_complete)

    def _add(self, line: Call | Opened | Row) -> None:
        data = msgspec.json.encode(line)
        self.size += len(data)
        if self.size <= MAX_BYTES:
            self.lines.append(data)


class Tapes:
    """Which calls get a tape, by the server's options, and where tapes go."""

    def __init__(self, config: ServerConfig, draw: Callable[[], float] = random.random) -> None:
        self._config = config
        self._draw = draw
        self._folder = Path(config.record or "")

    def begin(self, *, is_asked: bool) -> Tape | None:
        """A tape for a call that begins, if it is to have one."""
        config = self._config
        is_chosen = is_asked or (config.record_sample > 0 and self._draw() < config.record_sample)
        if not (is_chosen or config.record_failed):
            return None
        return Tape(Mask() if config.record_privacy else None, is_chosen=is_chosen)

    def end(self, tape: Tape, engine: EngineInfo | None) -> None:
        """Write a tape down, unless nobody asked for it, it is too long or there are too many."""
        if not (tape.is_chosen or tape.is_bad):
            return
        try:
            self._write(tape, engine, f"{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}")
        except OSError as error:
            log.error("a recording could not be written: %s", error)

    def _write(self, tape: Tape, engine: EngineInfo | None, name: str) -> None:
        if tape.size > MAX_BYTES:
            log.warning("the recording of %s is larger than %d bytes and is dropped", name, MAX_BYTES)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for _ in self._folder.glob("*.jsonl")) >= self._config.record_max_files:
            log.warning("there are %d recordings: that of %s is dropped", self._config.record_max_files, name)
            return
        options = {key: value for key, value in dataclasses.asdict(self._config).items() if key not in SECRETS}
        head = Head(FORMAT, __version__, time.time(), options, engine, self._config.record_privacy)
        path = self._folder / f"{name}.jsonl"
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            for line in (msgspec.json.encode(head), *tape.lines, msgspec.json.encode(tape.wire())):
                file.write(line + b"\n")
        log.info("recorded %s", path)
