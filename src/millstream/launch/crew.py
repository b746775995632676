"""Crew: the child processes of a server, each at its post. Starts them, hears them, and fills the post of one that died.

Owned by the supervisor, which waits for all of them in one place and says when it is over. Knows no signals and no requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.config import ChildConfig, ServerConfig
from millstream.errors import StartupError
from millstream.ipc.address import entry_name, socket_path
from millstream.ipc.control import PeerGone
from millstream.launch.restart import WINDOW_S, Backoff
from millstream.launch.spawn import NEXT, Child, spawn
from millstream.launch.watch import Watch
from millstream.messages import ChildError, EngineInfo, Heartbeat, Measures, ProcessState, Ready, ServerState, SetLogLevel
from millstream.messages.control import ProcessName, ProcessPhase
from millstream.observe import families
from millstream.observe.log import set_level
from millstream.observe.tally import Tally, lasting, merged

log = logging.getLogger(__name__)

LOOK_S = 1.0  # so often `tend` is called, at least


@dataclass
class Post:
    """What one process at a time does for the server. `restart_at`: when the dead `child` gets its successor."""

    kind: ProcessName
    child: Child
    backoff: Backoff
    watch: Watch | None = None  # over a child that is ready
    restart_at: float | None = None


class Crew:
    """All child processes. Each is told how the others are."""

    def __init__(self, config: ServerConfig, directory: str, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        self._config = config
        self._directory = directory
        self._listener = listener
        self._selector = selector
        self._num_entries = 0  # started so far: a worker's number is never used again
        self._posts: list[Post] = []
        self._tally = Tally("supervisor")
        self._restarts = self._tally.counter(families.RESTARTS)
        self._level_was_set = False
        self._of_the_dead: dict[ProcessName, Measures] = {}  # what they had counted, by kind
        self.engine: EngineInfo | None = None
        self._looked_at = time.monotonic()
        self._is_draining = False
        self.has_started = False  # all were ready once: from then on, who dies gets a successor

    def start(self) -> None:
        """Start every process."""
        entries: list[ProcessName] = ["entry"] * self._config.entry_workers
        for kind in (*entries, "scheduler", "detokenizer"):
            post = Post(kind, self._spawn(kind), Backoff(self._config.max_restarts))
            self._posts.append(post)
            self._selector.register(post.child.link, selectors.EVENT_READ, post)
        self.publish()

    def children(self, kind: ProcessName | None = None) -> Iterator[Child]:
        """The processes that are or were last at their posts; those of `kind`, if given."""
        return (post.child for post in self._posts if kind in (None, post.kind))

    @property
    def is_ready(self) -> bool:
        """Whether every process is."""
        return all(child.phase == "READY" for child in self.children())

    def publish(self) -> None:
        """Tell the entry workers how everybody is."""
        processes = {child.name: ProcessState(pid=child.pid, state=child.phase) for child in self.children()}
        own = self._tally.measures()
        measures = [*self._of_the_dead.values(), *([] if own is None else [own])]
        level = self._config.log_level if self._level_was_set else None
        state = ServerState(processes=processes, engine=self.engine, measures=measures, log_level=level)
        for child in self.children("entry"):
            if NEXT[child.phase]:  # it is not over
                child.link.send(state)

    def drain(self) -> None:
        """From now on entry workers only end what they have: one that dies is not replaced."""
        self._is_draining = True
        for post in self._posts:
            if post.kind == "entry":
                post.restart_at = None

    def hear(self, post: Post, now: float) -> None:
        """Take what the process at `post` said; if it is dead, note it."""
        child = post.child
        try:
            messages = child.link.receive()
        except PeerGone:
            self._bury(child, "STOPPED" if child.phase == "DRAINING" else "FAILED")
            return
        for message in messages:
            if isinstance(message, ChildError):
                child.error = message
            elif isinstance(message, Heartbeat):
                if post.watch is not None:
                    post.watch.note(message, now)
            elif isinstance(message, Measures):
                child.measures = message
            elif isinstance(message, SetLogLevel):
                self._set_level(message)
            elif isinstance(message, Ready) and child.phase == "STARTING":
                child.move("READY")
                if self.has_started:
                    log.info("%s is ready", child.name)
                post.backoff.ready(now)
                post.watch = Watch(
                    now, wedge_timeout_s=self._config.wedge_timeout_s, step_timeout_s=self._config.step_timeout_s
                )
                self.engine = message.engine or self.engine
                self.publish()
        self.has_started = self.has_started or self.is_ready

    def tend(self, now: float) -> None:
        """Deal with who is dead, late or wedged, and fill posts whose time has come.

        Raises:
            StartupError: a process died or was late before the server was ready once, or has died too often since.
        """
        pause_s = now - self._looked_at - LOOK_S
        self._looked_at = now
        for post in self._posts:
            child = post.child
            if child.phase == "READY" and post.watch is not None:
                if pause_s >= LOOK_S:  # we were stopped, and perhaps all of us
                    post.watch.forgive(pause_s, now)
                self._judge(child, post.watch, now)
            if child.phase == "STARTING" and now >= child.started_at + self._config.start_timeout_s:
                self._give_up(child)
            if child.phase != "FAILED" or (self._is_draining and post.kind == "entry"):
                continue
            if post.restart_at is None:
                post.restart_at = self._answer_death(post, now)
            if now >= post.restart_at:
                post.restart_at = None
                post.watch = None
                post.child = self._spawn(post.kind)
                self._restarts.add(1, post.kind)
                self._selector.register(post.child.link, selectors.EVENT_READ, post)
                self.publish()

    def next_deadline(self) -> float:
        """When `tend` wants to look again though nobody speaks."""
        times = [self._looked_at + LOOK_S]
        times += [post.restart_at for post in self._posts if post.restart_at is not None]
        times += [child.started_at + self._config.start_timeout_s for child in self.children() if child.phase == "STARTING"]
        return min(times)

    def kill(self, child: Child) -> None:
        """End a process that does not end by itself."""
        child.process.kill()
        self._bury(child, "FAILED")

    def close(self) -> None:
        """Close the links."""
        for child in self.children():
            child.link.close()

    def _spawn(self, kind: ProcessName) -> Child:
        is_entry = kind == "entry"
        config = ChildConfig(
            server=self._config,
            socket_directory=self._directory,
            name=entry_name(self._num_entries) if is_entry else kind,
            entry=self._num_entries if is_entry else 0,
            listen_fd=self._listener.fileno() if is_entry else None,
            is_successor=self.has_started,
        )
        self._num_entries += is_entry
        child = spawn(kind, config)
        child.started_at = time.monotonic()
        return child

    def _bury(self, child: Child, phase: ProcessPhase) -> None:
        """See a dead process off: reap it, and remove its socket, on which nobody reads any more."""
        self._selector.unregister(child.link)
        child.reap()
        self._keep_counts(child)
        child.link.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path(Path(self._directory), child.name))
        child.move(phase)
        self.publish()

    def _set_level(self, message: SetLogLevel) -> None:
        """Log from another level on, in all processes and those that follow."""
        self._config = dataclasses.replace(self._config, log_level=message.level)
        self._level_was_set = True
        log.warning("the log level is %s", message.level)
        set_level(message.level)
        for child in self.children():
            if NEXT[child.phase]:
                child.link.send(message)
        self.publish()

    def _keep_counts(self, child: Child) -> None:
        """Go on telling what a dead process had counted when it last told anybody: no count goes back."""
        with contextlib.suppress(PeerGone):
            child.measures = next((each for each in child.link.receive()[::-1] if isinstance(each, Measures)), child.measures)
        if child.measures is not None:
            known = [self._of_the_dead[child.kind]] if child.kind in self._of_the_dead else []
            self._of_the_dead[child.kind] = merged([*known, lasting(child.measures)], child.kind)

    def _judge(self, child: Child, watch: Watch, now: float) -> None:
        verdict = watch.verdict(now)
        if verdict is not None:
            child.error = ChildError(process=child.kind, message=f"{verdict}; it was killed")
            self.kill(child)

    def _give_up(self, child: Child) -> None:
        """End a process that is still not ready after its time."""
        limit = self._config.start_timeout_s
        if not self.has_started:
            late = ", ".join(each.name for each in self.children() if each.phase != "READY")
            raise StartupError(f"not ready after {limit:g} s: {late}", hint="a larger model needs a larger --start-timeout-s")
        child.error = child.error or ChildError(process=child.kind, message=f"not ready after {limit:g} s")
        self.kill(child)

    def _answer_death(self, post: Post, now: float) -> float:
        """When the dead process gets its successor.

        Raises:
            StartupError: it gets none.
        """
        child = post.child
        if not self.has_started:  # quote one that said why, where one did
            child = next((each for each in self.children() if each.error is not None), child)
        death, hint = child.describe_death(), child.error.hint if child.error is not None else None
        if not self.has_started:
            raise StartupError(death, hint=hint)
        restart_at = post.backoff.died(now)
        if restart_at is None:
            count = self._config.max_restarts
            raise StartupError(f"{death}; it was restarted {count} times within {WINDOW_S:g} s and is given up", hint=hint)
        log.error("%s; it is restarted %s", death, f"in {restart_at - now:g} s" if restart_at > now else "at once")
        return restart_at
