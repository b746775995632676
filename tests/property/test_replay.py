"""Any order of requests, steps, deaths of the detokenizer and of entry workers: no client loses or repeats anything.

Scheduler, detokenizer and the entry's `ReqState` are the real ones; between them are lists instead of sockets, with the same
rules: what was sent to the dead is lost, what the dead sent is read, and nothing is read twice.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.entry.state import Phase, ReqState
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput
from millstream.execution.logprobs import prompt_positions
from millstream.kv.pool import KVPool
from millstream.messages import (
    Abort,
    AbortReq,
    Delivered,
    FinishReason,
    GenerateReqInput,
    ReplayReq,
    SamplingParams,
    StatsReply,
    StatsReq,
    TextRow,
    Timing,
    TokenizedGenerateReqInput,
)
from millstream.messages.details import LogprobParams, RowDetails, joined, no_logprobs
from millstream.observe.ledger import Ledger
from millstream.scheduler.admission import Limits
from millstream.scheduler.scheduler import Scheduler
from millstream.text.tokenizer import scripted_text
from tests.unit.scheduler.harness import EOS, tokenizer, told_of

STOPS: tuple[tuple[str, ...], ...] = ((), (), ("water",), ("мельниц", "水车"), ("e ", "the mill stream"))


@functools.cache
def spoken() -> list[int]:
    """A text in many languages: characters fall apart into tokens."""
    return tokenizer().encode(scripted_text(), add_special_tokens=False)


class TextExecutor:
    """Says the text from the place that the prompt's first id names, one to three tokens a step."""

    capabilities = Capabilities(vocab_size=1536, context_length=512, num_pages=400, page_size=4, eos_token_ids=frozenset({EOS}))

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        output = ForwardOutput([self._row(row.token_ids, row.num_prompt_tokens) if row.sample else [] for row in batch.rows])
        for index, (row, new) in enumerate(zip(batch.rows, output.token_ids, strict=True)):
            if row.logprobs is not None:
                length = len(row.token_ids)
                output.logprobs[index] = told_of([*row.token_ids, *new], range(length, length + len(new)), row.logprobs)
                output.prompt_logprobs[index] = told_of(row.token_ids, prompt_positions(row), row.logprobs)
        return output

    def close(self) -> None:
        """Nothing is held."""

    def _row(self, ids: Any, num_prompt_tokens: int) -> list[int]:
        start = ids[0] + len(ids) - num_prompt_tokens
        return [spoken()[(start + index) % len(spoken())] for index in range(1 + start % 3)]


class Link:
    """The way from the scheduler to the detokenizer. `number` counts connections; a dead receiver shows with the next use."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.is_bound = True
        self.pid = 0  # of the detokenizer
        self._number = 0
        self._is_connected = False

    def send(self, message: Any) -> int:
        if self.connect():
            self.queue.append(message)
        return self.connect()

    def connect(self) -> int:
        if self.is_bound and not self._is_connected:
            self._is_connected = True
            self._number += 1
        return self._number if self._is_connected else 0

    @property
    def receiver_pid(self) -> int:
        return self.pid

    def receiver_died(self) -> None:
        self.queue.clear()
        self.is_bound = self._is_connected = False


class Entry:
    """One entry worker: what it has received of its requests."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outbox: deque[Any] = deque()  # to the scheduler
        self.inbox: deque[Any] = deque()  # from the detokenizer
        self.live: dict[str, Client] = {}
        self.by_slot: dict[int, Client] = {}
        self.stats: list[StatsReply] = []
        self.late = 0

    def send(self, message: Any) -> None:
        """What the detokenizer calls."""
        self.inbox.append(message)

    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.inbox))):
            message = self.inbox.popleft()
            if isinstance(message, StatsReply):
                self.stats.append(message)
                continue
            for columns in message.columns:
                for slot, text, token_ids in columns.rows():
                    if (client := self.by_slot.get(slot)) is None:
                        self.late += 1
                    else:
                        client.state.push(TextRow(client.message.rid, slot, text, token_ids, None))
            delivered = [row.rid for row in message.rows if self._take(row)]
            if delivered:
                self.outbox.append(Delivered(delivered, self.number))

    def _take(self, row: TextRow) -> bool:
        client = self.live.get(row.rid)
        if client is None:
            self.late += 1
            return False
        self.by_slot[row.slot] = client
        client.state.push(row)
        if client.state.phase is Phase.FINISHED:
            del self.live[row.rid], self.by_slot[row.slot]
            return True
        return False


class Client:
    """What one client got."""

    def __init__(self, message: TokenizedGenerateReqInput) -> None:
        self.message = message
        obj = GenerateReqInput(rid=message.rid, input_ids=message.input_ids, sampling=message.sampling, timing=Timing())
        self.state = ReqState(obj, Ledger("entry").open(message.rid))
        self.state.move(Phase.DISPATCHED)
        self.text = ""
        self.token_ids: list[int] = []
        self.details: list[RowDetails | None] = []
        self.is_aborted = False
        self.is_lost = False  # its worker died

    def take(self) -> None:
        row = self.state.take()
        if row is not None:
            self.text += row.text
            self.token_ids += row.token_ids
            self.details.append(row.details)


class _Nowhere:
    """Where verdicts go, which nobody looks at here, and rows for the dead."""

    def send(self, message: Any) -> None:
        """It is lost."""


NOWHERE = _Nowhere()


class Server:
    """The three kinds of process, and what is under way between them."""

    def __init__(self) -> None:
        executor = TextExecutor()
        capabilities = executor.capabilities
        self.link = Link()
        self.entries: dict[int, Entry] = {}
        self.scheduler = Scheduler(
            executor=executor,
            tokenizer=tokenizer(),
            pool=KVPool(num_pages=capabilities.num_pages, page_size=capabilities.page_size),
            eos_token_ids=capabilities.eos_token_ids,
            limits=Limits(
                max_running_requests=8,
                max_queued_requests=64,
                max_queued_tokens=1 << 20,
                chunked_prefill_size=64,
                vocab_size=1536,
                context_length=512,
            ),
            to_detokenizer=self.link,
            to_entry=lambda entry: NOWHERE,
        )
        self.start_detokenizer()

    def start_detokenizer(self) -> None:
        self.detokenizer = DetokenizerManager(tokenizer=tokenizer(), to_entry=lambda number: self.entries.get(number, NOWHERE))
        self.link.is_bound = True
        self.link.pid += 1

    def pump(self) -> None:
        """Give the scheduler what the entry workers sent."""
        for entry in self.entries.values():
            while entry.outbox:
                self.scheduler.handle(entry.outbox.popleft())

    def carry(self, count: int) -> None:
        for _ in range(min(count, len(self.link.queue))):
            self.detokenizer.handle(self.link.queue.popleft())


@functools.cache
def undisturbed(start: int, max_new: int, stop: tuple[str, ...], skip: bool) -> tuple[str, list[int], FinishReason]:
    """What a request comes to where nobody dies."""
    server = Server()
    entry = server.entries[0] = Entry(0)
    client = Client(request("r", start, max_new, stop, skip, 0))
    entry.live["r"] = client
    entry.outbox.append(client.message)
    while client.state.phase is not Phase.FINISHED:
        server.pump()
        server.scheduler.step()
        server.carry(9)
        entry.read(9)
    client.take()
    assert client.state.finish is not None
    return client.text, client.token_ids, client.state.finish


def request(
    rid: str, start: int, max_new: int, stop: tuple[str, ...], skip: bool, entry: int, logprobs: LogprobParams | None = None
) -> TokenizedGenerateReqInput:
    sampling = SamplingParams(seed=1, stop=stop, skip_special_tokens=skip)
    return TokenizedGenerateReqInput(
        rid=rid,
        input_ids=[start, 5],
        sampling=sampling,
        max_new_tokens=max_new,
        slot=crc32(rid.encode()),
        entry=entry,
        logprobs=logprobs,
        timing=Timing(),
    )


class ReplayMachine(RuleBasedStateMachine):
    """Two entry workers at a time, one scheduler, one detokenizer after another."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.server.entries = {0: Entry(0), 1: Entry(1)}
        self.is_ready = True  # the entry workers know of the detokenizer that is there
        self.is_dead = False
        self.clients: list[Client] = []
        self.num_entries = 2

    @rule(
        rid=st.sampled_from("abcdefgh"),
        which=st.integers(0, 1),
        start=st.integers(0, 1400),
        max_new=st.integers(0, 60),
        stop=st.sampled_from(STOPS),
        skip=st.booleans(),
        logprobs=st.sampled_from([None, LogprobParams(top=1), LogprobParams(top=1, token_ids=(4,), prompt_start=0)]),
    )
    def submit(
        self,
        rid: str,
        which: int,
        start: int,
        max_new: int,
        stop: tuple[str, ...],
        skip: bool,
        logprobs: LogprobParams | None,
    ) -> None:
        if any(rid in entry.live for entry in self.server.entries.values()):
            return
        entry = list(self.server.entries.values())[which]
        if rid in self.server.scheduler._live:  # of a worker that died: refused
            return
        client = Client(request(rid, start, max_new, stop, skip, entry.number, logprobs))
        self.clients.append(client)
        entry.live[rid] = client
        entry.outbox.append(client.message)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.server.pump()
            self.server.scheduler.step()

    @precondition(lambda self: not self.is_dead)
    @rule(count=st.integers(1, 8))
    def carry(self, count: int) -> None:
        self.server.carry(count)

    @rule(which=st.integers(0, 1), count=st.integers(1, 8))
    def read(self, which: int, count: int) -> None:
        list(self.server.entries.values())[which].read(count)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        if self.clients:
            data.draw(st.sampled_from(self.clients)).take()

    @rule(rid=st.sampled_from("abcdefgh"))
    def abort(self, rid: str) -> None:
        for entry in self.server.entries.values():
            if rid in entry.live:
                entry.live[rid].is_aborted = True
                entry.outbox.append(AbortReq(rid))

    @precondition(lambda self: not self.is_dead)
    @rule()
    def kill_detokenizer(self) -> None:
        self.server.link.receiver_died()
        self.is_dead, self.is_ready = True, False

    @precondition(lambda self: self.is_dead)
    @rule()
    def start_detokenizer(self) -> None:
        self.server.start_detokenizer()
        self.is_dead = False

    @precondition(lambda self: not self.is_dead and not self.is_ready)
    @rule()
    def the_new_detokenizer_is_ready(self) -> None:
        self.is_ready = True
        for entry in self.server.entries.values():
            entry.read(len(entry.inbox))
            received = [client.state.received for client in entry.live.values()]
            entry.outbox.append(ReplayReq(received, self.server.link.pid, entry.number))

    @rule(which=st.integers(0, 1))
    def kill_entry(self, which: int) -> None:
        number = list(self.server.entries)[which]
        self.server.pump()
        for client in self.server.entries[number].live.values():
            client.is_lost = True
        # what the detokenizer has still to say to it goes nowhere
        self.server.entries = {key: entry for key, entry in self.server.entries.items() if key != number}
        self.server.entries[self.num_entries] = Entry(self.num_entries)
        self.num_entries += 1
        self.server.scheduler.entry_gone(number)

    def teardown(self) -> None:
        if self.is_dead:
            self.start_detokenizer()
        if not self.is_ready:
            self.the_new_detokenizer_is_ready()
        entries = self.server.entries.values()
        for _ in range(2000):
            self.server.pump()
            self.server.scheduler.step()
            self.server.carry(len(self.server.link.queue))
            for entry in entries:
                entry.read(len(entry.inbox))
            if not any(entry.live or entry.outbox for entry in entries) and not self.server.scheduler.has_work:
                break
        for client in self.clients:
            self.check(client)
        self.nothing_is_held()

    def check(self, client: Client) -> None:
        if client.is_lost:
            return
        client.take()
        self.check_told(client)
        sampling = client.message.sampling
        text, token_ids, finish = undisturbed(
            client.message.input_ids[0], client.message.max_new_tokens, sampling.stop, sampling.skip_special_tokens
        )
        assert client.state.phase is Phase.FINISHED
        assert not client.state.mismatched
        if client.is_aborted and isinstance(client.state.finish, Abort):
            assert token_ids[: len(client.token_ids)] == client.token_ids
            return
        assert client.text == text
        assert client.token_ids == token_ids
        assert client.state.finish == finish

    def check_told(self, client: Client) -> None:
        """Each token's log probabilities and the prompt's came once, whoever died meanwhile."""
        params, prompt = client.message.logprobs, client.message.input_ids[:2]  # the scheduler appends to them
        if params is None:
            assert not any(client.details)
            return
        told, ids = joined(client.details) or RowDetails(), prompt + client.token_ids
        assert (told.logprobs or no_logprobs()) == told_of(ids, range(2, len(ids)), params)
        assert sum(row.prompt_logprobs is not None for row in client.details if row) <= 1
        if client.token_ids and params.prompt_start is not None:
            assert told.prompt_logprobs == told_of(prompt, range(1, 2), params)

    def nothing_is_held(self) -> None:
        entry = next(iter(self.server.entries.values()))
        self.server.scheduler.handle(StatsReq(1, entry=entry.number))
        self.server.carry(len(self.server.link.queue))
        entry.read(len(entry.inbox))
        (stats,) = entry.stats
        assert (stats.scheduler_requests, stats.undelivered, stats.detokenizer_requests) == (0, 0, 0)
        assert stats.pages_free == stats.pages_total
        assert [entry.late for entry in self.server.entries.values()] == [0, 0]


ReplayMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestReplay = ReplayMachine.TestCase
