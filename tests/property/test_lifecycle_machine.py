"""Any order of requests, deliveries, aborts, disconnects, faults and steps: one end each, exact text, nothing held anywhere.

The real entry (over ASGI), scheduler and detokenizer in one thread. Each link between them delivers when Hypothesis says so,
so verdicts and rows overtake each other as they can between processes.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millstream.config import ServerConfig
from millstream.messages import Stop
from millstream.messages.finish import AbortCause
from tests.property.test_scheduler_machine import STEMS, Expected, alone
from tests.support.asgi import Call
from tests.support.short_way import ShortWay
from tests.support.sse import parse_events
from tests.support.whole import TOKENIZER, WholeServer
from tests.unit.scheduler.harness import CheckingExecutor

CAUSES: frozenset[str] = frozenset(get_args(AbortCause))
STOPS = ("e", "in", "та")
LINKS = ("requests", "verdicts", "tokens", "texts")
FEW_STATES = 3  # a detokenizer's table that gets full


def visible(expected: Expected, stop: tuple[str, ...]) -> str:
    """The text of an answer: of all tokens that count, up to the stop that ends it."""
    tokens, finish = expected.tokens, expected.finish
    matched = finish.matched if isinstance(finish, Stop) else None
    if isinstance(matched, int):
        return TOKENIZER.decode(tokens[:-1])
    decoder = TOKENIZER.incremental()
    before = len(decoder.push(tokens[:-1]))
    if matched is None:
        return TOKENIZER.decode(tokens)
    text = TOKENIZER.incremental().push(tokens)
    ends = [(at + len(s), at) for s in stop for at in range(len(text)) if text.startswith(s, at) and at + len(s) > before]
    return text[: min(ends)[1]]


def is_beginning(text: str, whole: str) -> bool:
    """Whether `text` is a beginning of `whole`; the end of a request may have cut its last character."""
    return whole.startswith(text) or whole.startswith(text.rstrip("\ufffd"))


@dataclass
class Client:
    """One call and what may have happened to it. `disturbed`: anything but a full answer is possible now."""

    rids: list[str]
    call: Call
    short: ShortWay
    is_stream: bool
    text: str
    is_registered: bool = False
    is_disturbed: bool = False
    is_gone: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)  # choices that were aborted alone

    def read(self) -> str | None:
        """Take the finished answer apart; returns the code of the error it ends with, if it does."""
        status = self.call.sent[0]["status"]
        if status != 200:
            error = json.loads(self.call.content)["error"]
            return str(error["code"] or error["type"])
        code = None
        for body in self._bodies():
            if "error" in body:
                code = str(body["error"]["code"])
            for choice in body.get("choices", ()):
                self.texts[choice["index"]] = self.texts.get(choice["index"], "") + choice["text"]
                if choice["finish_reason"] == "abort":
                    self.aborted.add(choice["index"])
        return code

    def _bodies(self) -> list[dict[str, Any]]:
        if not self.is_stream:
            return [json.loads(self.call.content)]
        events = parse_events(self.call.content)
        assert (events[-1].data == "[DONE]") == ("error" not in events[-1].data)
        return [event.data for event in events if event.data != "[DONE]"]


class LifecycleMachine(RuleBasedStateMachine):
    """Random life of a whole server."""

    @initialize(
        num_pages=st.integers(10, 20),
        page_size=st.sampled_from([4, 5]),
        max_running=st.integers(1, 8),
        max_queued=st.sampled_from([2, 30, 30]),
        max_states=st.sampled_from([FEW_STATES, 1000, 1000]),
        bursts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        share=st.booleans(),
    )
    def start(
        self, num_pages: int, page_size: int, max_running: int, max_queued: int, max_states: int, bursts: list[int], share: bool
    ) -> None:
        self.executor = CheckingExecutor(
            num_pages=num_pages, page_size=page_size, burst=lambda position: bursts[position % len(bursts)]
        )
        config = ServerConfig(
            strict_ledger=True,
            max_running_requests=max_running,
            max_queued_requests=max_queued,
            max_detokenizer_states=max_states,
        )
        self.server = WholeServer(self.executor, config, share_prefixes=share, chunk=24)
        self.clients: list[Client] = []
        self.given_up: set[int] = set()  # requests whose end the entry made
        self.is_table_small = max_states == FEW_STATES

    @rule(
        which_rid=st.sampled_from(["new", "new", "again", "again", "live"]),
        count=st.integers(1, 3),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        is_stream=st.booleans(),
        stem=st.sampled_from(STEMS),
        length=st.integers(1, 20),
        max_new=st.integers(0, 16),
        min_new=st.integers(0, 8),
        ignore_eos=st.booleans(),
        stop=st.sampled_from([(), STOPS]),
    )
    def submit(
        self,
        which_rid: str,
        count: int,
        n: int,
        is_stream: bool,
        stem: list[int],
        length: int,
        max_new: int,
        min_new: int,
        ignore_eos: bool,
        stop: tuple[str, ...],
    ) -> None:
        min_new = min(min_new, max_new)
        body: dict[str, Any] = {
            "n": n, "stream": is_stream, "prompt": stem[:length], "max_tokens": max_new, "min_tokens": min_new,
            "ignore_eos": ignore_eos, "stop": list(stop), "temperature": 0,
        }  # fmt: skip
        expected = alone(stem[:length], max_new=max_new, min_new=min_new, stop=stop, ignore_eos=ignore_eos)
        for _ in range(count):
            self.send(self.rid(which_rid), body, visible(expected, stop))

    def rid(self, which: str) -> str:
        """A new rid, the one that came free last, or one that is taken."""
        if which != "new":
            is_over = which == "again"
            for client in reversed(self.clients):
                if client.is_registered and client.call.task.done() == is_over:
                    return client.rids[0].split("-")[0]
        return f"r{len(self.clients)}"

    def send(self, rid: str, body: dict[str, Any], text: str) -> None:
        short = ShortWay()

        def call() -> Call:
            short.call = Call(self.server.app, "/v1/completions", {"rid": rid, **body}, direct=short)
            return short.call

        rids = [rid] if body["n"] == 1 else [f"{rid}-{choice}" for choice in range(body["n"])]
        client = Client(rids, self.server.in_loop(call), short, body["stream"], text)
        client.is_registered = not client.call.sent  # a refusal is there at once
        self.clients.append(client)

    @precondition(lambda self: any(map(len, self.server.links.values())))
    @rule(data=st.data(), count=st.integers(1, 4))
    def deliver(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from([name for name, link in self.server.links.items() if len(link)]))
        for _ in range(min(count, len(self.server.links[name]))):
            self.server.deliver(name)

    @rule(rounds=st.integers(1, 6), names=st.sets(st.sampled_from(LINKS), min_size=2))
    def work(self, rounds: int, names: set[str]) -> None:
        """Some time in which all is well, but for links that do not come to deliver."""
        for _ in range(rounds):
            for name in LINKS:
                while name in names and len(self.server.links[name]):
                    self.server.deliver(name)
            if self.server.dead != "scheduler":
                self.server.scheduler.step()

    @precondition(lambda self: self.server.dead != "scheduler")
    @rule(count=st.integers(1, 3), nothing=st.booleans())
    def step(self, count: int, nothing: bool) -> None:
        self.executor.nothing_for = {"r0", "r1"} if nothing else set()
        for _ in range(count):
            self.server.scheduler.step()

    def open_clients(self) -> list[Client]:
        return [client for client in self.clients if client.is_registered and not client.call.task.done()]

    def draw(self, data: st.DataObject) -> Client:
        number = data.draw(st.sampled_from([self.clients.index(client) for client in self.open_clients()]))
        return self.clients[number]

    def disturb(self, rid: str) -> None:
        """Whoever has this rid may not get a full answer: of several calls the one that is not over for the entry."""
        for client in self.open_clients():
            client.is_disturbed = client.is_disturbed or rid in client.rids

    @precondition(lambda self: self.open_clients() != [])
    @rule(data=st.data(), whole_call=st.booleans())
    def abort(self, data: st.DataObject, whole_call: bool) -> None:
        client = self.draw(data)
        rid = client.rids[0].split("-")[0] if whole_call else data.draw(st.sampled_from(client.rids))
        for each in self.server.in_loop(lambda: self.server.manager.abort(rid)):
            self.disturb(each)

    @precondition(lambda self: len(self.server.manager.endings.due))
    @rule(data=st.data())
    def lose_patience(self, data: st.DataObject) -> None:
        """An end that is due has not come: the entry makes it, and its final row comes later."""
        manager = self.server.manager
        slot = data.draw(st.sampled_from(sorted(manager.endings.due._timers)))
        self.server.in_loop(lambda: manager.endings.make(slot, "aborted"))
        assert slot not in manager.registry.by_slot
        self.given_up.add(slot)

    @precondition(lambda self: self.open_clients() != [])
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        client = self.draw(data)
        client.is_gone = client.is_disturbed = True
        self.server.in_loop(client.call.disconnect)
        states = [state for state, _ in self.server.manager.registry.by_rid.values() if state.released]
        assert all(state.abort_sent for state in states)

    @precondition(lambda self: self.open_clients() != [])
    @rule(data=st.data(), reads=st.booleans())
    def stop_or_go_on_reading(self, data: st.DataObject, reads: bool) -> None:
        client = self.draw(data)
        client.short.is_open = reads
        self.server.in_loop(client.call.read_on if reads else client.call.stop_reading)

    @precondition(lambda self: self.server.dead is None and self.open_clients() != [])
    @rule(data=st.data(), kind=st.sampled_from(["row", "step", "decoder", "writer"]))
    def fault(self, data: st.DataObject, kind: str) -> None:
        if kind in ("row", "step"):
            self.executor_fault(data, whole_step=kind == "step")
        elif kind == "decoder":
            self.decoder_fault(data)
        else:
            self.writer_fault(data)

    def executor_fault(self, data: st.DataObject, *, whole_step: bool) -> None:
        scheduler = self.server.scheduler
        if not scheduler.has_work:
            return
        live = sorted(scheduler._live)
        rids = set(live) if whole_step else {data.draw(st.sampled_from(live))}
        for rid in rids:
            self.disturb(rid)
        if whole_step:
            self.executor.fail_with = RuntimeError("no such step")
        else:
            self.executor.fail_rids = rids
        scheduler.step()
        self.executor.fail_with, self.executor.fail_rids = None, set()

    def deliver_one(self, *names: str) -> None:
        """Let a fault happen with more rows behind it."""
        for name in names:
            if len(self.server.links[name]):
                self.server.deliver(name)

    def decoder_fault(self, data: st.DataObject) -> None:
        statuses = self.server.detokenizer._statuses
        if statuses:
            rid = data.draw(st.sampled_from(sorted(statuses)))
            statuses[rid].decoder = None  # type: ignore[assignment]
            self.disturb(rid)
            self.deliver_one("tokens", "texts")

    def writer_fault(self, data: st.DataObject) -> None:
        owners = {rid: state for rid, (state, _) in self.server.manager.registry.by_rid.items() if state.shortcut is not None}
        if owners:
            rid = data.draw(st.sampled_from(sorted(owners)))
            owners[rid].shortcut = lambda text, token_ids: 1 // 0 == 0
            self.disturb(rid)
            self.deliver_one("texts")

    @precondition(lambda self: self.server.dead is None and len(self.clients) > 8)
    @rule(really=st.integers(0, 5))
    def kill_scheduler(self, really: int) -> None:
        """Every open request gets its end at once, and nothing new is taken: this server's scheduler does not come back."""
        if really:
            return
        for client in self.open_clients():
            client.is_disturbed = True
        self.server.kill_scheduler()

    @precondition(lambda self: self.server.dead is None)
    @rule()
    def replace_detokenizer(self) -> None:
        """Nobody may notice."""
        self.server.replace_detokenizer()

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "server"):
            self.server.scheduler.audit()
            assert [ledger.reconcile() for ledger in self.server.ledgers.values()] == [0, 0, 0]

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        try:
            self.drain()
            self.check_ends()
            self.check_that_nothing_is_held()
        finally:
            self.server.close()

    def drain(self) -> None:
        self.executor.nothing_for = set()
        self.server.run_dry()
        for client in self.clients:
            client.short.is_open = True
            self.server.in_loop(client.call.read_on)
        self.server.run_dry()
        for client in self.clients:
            assert client.call.task.done(), client

    def check_ends(self) -> None:
        lines = Counter(rid for rid, _ in self.server.lines.ends)
        assert lines == Counter(rid for client in self.clients if client.is_registered for rid in client.rids)
        for client in self.clients:
            self.check_answer(client)
        if self.server.dead is None:
            missing = Counter(self.server.accepted)
            missing.subtract(self.server.final_rows)
            assert set(missing.values()) <= {0, 1}
            assert {slot for slot, count in missing.items() if count} <= self.given_up  # lost with a detokenizer

    def check_answer(self, client: Client) -> None:
        if client.is_gone:
            return
        code = client.read()
        assert all(is_beginning(text, client.text) for text in client.texts.values())
        if code is None:
            assert client.is_disturbed or not client.aborted
            whole = {index: text for index, text in client.texts.items() if index not in client.aborted}
            assert whole == dict.fromkeys(set(range(len(client.rids))) - client.aborted, client.text)
        elif client.is_registered:
            causes = {cause for rid, cause in self.server.lines.ends if rid in client.rids}
            assert code in causes & CAUSES or "rejected" in causes
            is_unlucky = "rejected" in causes or (self.is_table_small and code == "engine_error")
            assert client.is_disturbed or is_unlucky, code

    def check_that_nothing_is_held(self) -> None:
        manager = self.server.manager
        registry = manager.registry
        assert (registry.by_rid, registry.by_slot, registry.calls, len(manager.endings.due)) == ({}, {}, {}, 0)
        assert self.server.ledgers["entry"].totals() == {}
        assert manager.endings.unread == {}
        assert manager.endings.stream_mismatches == 0
        if self.server.dead != "scheduler":
            assert self.server.ledgers["scheduler"].totals() == {}
        if self.server.dead is not None:
            return
        assert not self.server.scheduler.has_work
        assert self.server.pool.available == self.server.pool.num_pages
        assert len(self.server.detokenizer) == 0
        found = self.server.ask("/debug/ledger").body
        assert (found["held"], found["left_out"], found["totals"], found["mismatches"]) == ([], 0, {}, 0)
        ends = Counter(cause for _, cause in self.server.lines.ends)
        assert found["released"].get("state", {}) == ends


LifecycleMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLifecycleMachine = LifecycleMachine.TestCase


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_long_random_life_of_whole_servers() -> None:
    at_length = settings(max_examples=1000, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(LifecycleMachine, settings=at_length)
