"""Service: what HTTP handlers may reach (options, model names, template, manager) and whether the server can work now.

Owned by the entry process, which tells it what happens; handlers only ask. It starts empty: HTTP answers while all loads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from millstream.config import ServerConfig
from millstream.entry.failure import failure_of_death
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.errors import EngineDeadError, ModelNotFound, RequestError
from millstream.ipc.channel import Sender
from millstream.messages import EngineInfo, ServerState
from millstream.observe.ledger import Ledger
from millstream.text.chat_template import ChatTemplate
from millstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedText:
    """What the entry loads: the tokenizer, the chat template if the model has one, and the names the model goes by."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: tuple[str, ...]


class Service:
    """State of the server as its clients see it."""

    def __init__(self, *, config: ServerConfig, to_scheduler: Sender, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.clock = clock
        self.started_at = int(time.time())
        self.processes = ServerState(processes={}).processes
        self.draining = False
        self._to_scheduler = to_scheduler
        self._engine: EngineInfo | None = None
        self._text: LoadedText | None = None
        self._manager: TokenizerManager | None = None

    def text_loaded(self, text: LoadedText) -> None:
        """Tokenizer and template are there."""
        self._text = text
        self._make_manager()

    def update(self, state: ServerState) -> None:
        """Take the supervisor's view. A failed process ends every open request: their final rows will never come."""
        self.processes = state.processes
        self._engine = self._engine or state.engine
        self._make_manager()
        failed = [name for name, process in state.processes.items() if process.state == "FAILED"]
        if failed and self._manager is not None:
            failure = failure_of_death(f"The {' and '.join(failed)} process has died.")
            self._manager.fail_all(failure, tell_scheduler="scheduler" not in failed)

    def _make_manager(self) -> None:
        if self._manager is None and self._engine is not None and self._text is not None:
            self._manager = TokenizerManager(
                tokenizer=self._text.tokenizer,
                to_scheduler=self._to_scheduler,
                engine=self._engine,
                max_live=self.config.live_limit,
                max_unsent_bytes=self.config.max_unsent_bytes,
                ledger=Ledger("entry", strict=self.config.strict_ledger),
                clock=self.clock,
            )

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
    def places(self) -> int:
        """Requests that may run and wait at a time: a call of more can never be admitted.

        Raises:
            EngineDeadError: not known yet.
        """
        places = self.manager.engine.max_running_requests + self.config.max_queued_requests
        return min(places, self.config.live_limit)

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
        for name, process in self.processes.items():
            if process.state != "READY":
                raise EngineDeadError(
                    f"The {name} process is {process.state}; the server cannot take requests now.",
                    code="loading" if process.state == "STARTING" else "engine_dead",
                )
        if self._manager is None or not self.processes:
            raise EngineDeadError("The server is still loading.", code="loading")

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
    def template(self) -> ChatTemplate:
        """The chat template.

        Raises:
            RequestError: the model has none.
        """
        if self.text.template is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions, or start the server with --chat-template FILE.",
                code="no_chat_template",
            )
        return self.text.template

    def resolve_model(self, name: str) -> str:
        """The name to answer with for a request's `model`; an empty one means the served model.

        Raises:
            ModelNotFound: it is not served here.
        """
        names = self.text.names
        if name and name not in names:
            raise ModelNotFound(name, names[0])
        return name or names[0]
