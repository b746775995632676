"""ScriptedExecutor: an executor without a model. It answers every prompt with a text known beforehand, at a pace of choice.

For tests of clients and of this server, and for measuring everything but the model. Chosen by `--executor scripted`; needs no
torch. What a row gets depends on the row alone: on how many tokens it has and on its prompt's script, so batching and
retraction change nothing. Time does: a script may ask for delays. Steps that a row's draft foretells come as one. There is no
KV, so pages and their copies mean nothing here. Under a grammar a row says the next higher id that is allowed, round the
vocabulary, in place of one that is not, and its script ends only where the grammar may.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millstream.config import ServerConfig
from millstream.errors import EngineError, MillstreamError, StartupError
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.logprobs import compute_logprobs, prompt_positions, prompt_tokens
from millstream.execution.scripted_rules import Fault, Script, ScriptBook, read_rules
from millstream.execution.verify import num_agreeing
from millstream.messages.details import LogprobParams, Logprobs, no_logprobs
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, scripted_text

DEFAULT_CONTEXT_LENGTH = 131_072  # tokens
DEFAULT_POOL_TOKENS = 2 * 1024 * 1024  # 1,024 streams of 1,024 tokens after prompts as long; a page is only an integer here
ROWS_TOGETHER = 256  # positions whose logits are held at once
MAX_WAIT_S = 0.010  # longest sleep while every row waits: an abort must be seen soon
EXIT_STATUS = 70
INLINE = "inline"
HIDDEN_SIZE = 8  # integers of 32 bits that SHA-256 makes


@dataclass(slots=True)
class _RowState:
    """A scripted request's place in time. Lost without harm: all but the delays follows from the row."""

    token_ids: Sequence[int]  # the very list of the request: a later one with the same rid has another
    script: Script
    due: float  # when the next step may come
    has_hung: bool = False


class ScriptedExecutor:
    """See the module. `book` is None for the built-in text alone; `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        *,
        capabilities: Capabilities,
        endless: list[int],
        book: ScriptBook | None = None,
        step_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.capabilities = capabilities
        self._endless = endless
        self._book = book
        self._step_s = step_s
        self._clock = clock
        self._sleep = sleep
        self._leave = leave
        self._tick = 0.0  # when the last paced step ended
        self._states: dict[str, _RowState] = {}
        by_rank = -np.log(1.0 + np.arange(capabilities.vocab_size))
        self._by_rank = np.concatenate([by_rank, by_rank]).astype(np.float32)  # twice, so that each order of ids is a part

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Answer one step.

        Raises:
            EngineError: a script asked for it.
        """
        output = self._builtin(batch) if self._book is None else self._scripted(batch, self._book)
        output.hidden = {index: scripted_state(row) for index, row in enumerate(batch.rows) if row.gives_hidden}
        for index, row in enumerate(batch.rows):
            if row.logprobs is not None and index not in output.errors:
                self._add_logprobs(row, index, output, row.logprobs)
        if self._step_s:
            self._pace()
        return output

    def close(self) -> None:
        """Forget all rows."""
        self._states.clear()

    def _add_logprobs(self, row: ForwardRow, index: int, output: ForwardOutput, params: LogprobParams) -> None:
        """The log probabilities of a row's part: what the script says is expected, and of the prompt, ids that count up."""
        said = output.token_ids[index]
        if said:
            output.logprobs[index] = self._logprobs_of(said, said, params)
        if positions := prompt_positions(row):
            expected = [token_id + 1 for token_id in row.token_ids[positions.start - 1 : positions.stop - 1]]
            output.prompt_logprobs[index] = self._logprobs_of(prompt_tokens(row, positions), expected, params)

    def _logprobs_of(self, token_ids: Sequence[int], expected: Sequence[int], params: LogprobParams) -> Logprobs:
        """Those of `token_ids` where `expected` are the most likely, and the others follow by id, round the vocabulary."""
        table = no_logprobs()
        size = self.capabilities.vocab_size
        for start in range(0, len(token_ids), ROWS_TOGETHER):
            firsts = [-each % size for each in expected[start : start + ROWS_TOGETHER]]  # the rank of id 0
            logits = np.stack([self._by_rank[first : first + size] for first in firsts])
            table.extend(compute_logprobs(logits, token_ids[start : start + ROWS_TOGETHER], params))
        return table

    def _builtin(self, batch: ForwardBatch) -> ForwardOutput:
        endless = self._endless
        period = len(endless)
        output = ForwardOutput(
            [[endless[(len(row.token_ids) - row.num_prompt_tokens) % period]] if row.sample else [] for row in batch.rows]
        )
        for index, row in enumerate(batch.rows):
            ids = output.token_ids[index] = _permitted(row, output.token_ids[index])
            position = len(row.token_ids) - row.num_prompt_tokens
            while ids and len(ids) <= len(row.draft) and ids[-1] == row.draft[len(ids) - 1]:
                ids.append(endless[(position + len(ids)) % period])
        return output

    def _scripted(self, batch: ForwardBatch, book: ScriptBook) -> ForwardOutput:
        output = ForwardOutput([[] for _ in batch.rows])
        now = self._clock()
        next_due: list[float] = []
        for index, row in enumerate(batch.rows):
            if not row.sample:
                next_due.append(now)  # a prefill chunk is progress
                continue
            try:
                state = self._state(row, book, now)
                if now < state.due:
                    next_due.append(state.due)
                    continue
                output.token_ids[index], is_last = self._answer(row, state, now)
                if is_last:
                    output.finished.add(index)
                next_due.append(now)
            except _RowFault as fault:
                output.errors[index] = str(fault)
        self._forget_absent(batch)
        if next_due and not output.errors and min(next_due) > now:
            self._sleep(min(min(next_due) - now, MAX_WAIT_S))
        return output

    def _state(self, row: ForwardRow, book: ScriptBook, now: float) -> _RowState:
        state = self._states.get(row.rid)
        if state is None or state.token_ids is not row.token_ids:
            try:
                script = book.script_for(list(row.token_ids[: row.num_prompt_tokens]))
            except MillstreamError as error:
                raise _RowFault(error.message) from error
            is_first = len(row.token_ids) == row.num_prompt_tokens
            state = _RowState(row.token_ids, script, now + script.delay_s if is_first else now)
            self._states[row.rid] = state
        return state

    def _answer(self, row: ForwardRow, state: _RowState, now: float) -> tuple[list[int], bool]:
        """The tokens of a step that is due, and whether they are the last."""
        script = state.script
        position = len(row.token_ids) - row.num_prompt_tokens
        if script.fault is not None and script.num_steps(position) >= script.fault.after:
            self._break(script.fault, state)
        state.due = max(state.due + script.step_s, now)
        if script.is_said(position) and self._may_end(row, position):
            return [], True
        ids = _permitted(row, self._tokens(row, script, position))
        while len(ids) <= len(row.draft) and num_agreeing(ids, row.draft) == len(ids) and self._goes_on(row, script, len(ids)):
            ids = ids + self._tokens(row, script, position + len(ids))
        end = position + len(ids)
        # what a grammar allows behind these tokens, the next step will tell
        is_last = row.allowed is None and script.is_said(end) and not script.faults_at_end and self._may_end(row, end)
        return ids, is_last

    def _tokens(self, row: ForwardRow, script: Script, position: int) -> list[int]:
        """The tokens of the script's step after `position` tokens, those replaced that the row may not have yet."""
        ids = script.tokens(position)
        if not row.banned_token_ids:
            return ids
        banned = set(row.banned_token_ids)
        num_banned = row.sampling.min_new_tokens - position  # tokens of this step that may not stop; later ones may
        return [
            script.filler(position + i) if token_id in banned and i < num_banned else token_id for i, token_id in enumerate(ids)
        ]

    def _goes_on(self, row: ForwardRow, script: Script, num_new: int) -> bool:
        """Whether, after `num_new` more tokens, the script has a step that is neither a fault nor an end."""
        position = len(row.token_ids) - row.num_prompt_tokens + num_new
        if script.fault is not None and script.num_steps(position) >= script.fault.after:
            return False
        return not (script.is_said(position) and self._may_end(row, position))

    def _may_end(self, row: ForwardRow, num_output_tokens: int) -> bool:
        if row.allowed is not None and not any(_is_allowed(row.allowed, each) for each in self.capabilities.eos_token_ids):
            return False
        return not row.sampling.ignore_eos and num_output_tokens >= row.sampling.min_new_tokens

    def _break(self, fault: Fault, state: _RowState) -> None:
        match fault.kind:
            case "error":
                raise _RowFault("the script asked for an error.")
            case "raise":
                raise EngineError("the script asked for a failed step.")
            case "exit":
                self._leave(EXIT_STATUS)
            case "hang":
                if not state.has_hung:
                    state.has_hung = True
                    self._sleep(fault.seconds)

    def _forget_absent(self, batch: ForwardBatch) -> None:
        # nobody says when a request ends, so what is not in the batch goes, once there is much of it
        if len(self._states) > 64 + 4 * len(batch.rows):
            present = {row.rid for row in batch.rows}
            self._states = {rid: state for rid, state in self._states.items() if rid in present}

    def _pace(self) -> None:
        """Sleep until the next tick. Ticks are a step apart; a server that was idle or late starts a new series."""
        now = self._clock()
        if now - self._tick > self._step_s:
            self._tick = now
        self._tick += self._step_s
        self._sleep(max(0.0, self._tick - now))


def _is_allowed(allowed: NDArray[np.uint32], token_id: int) -> bool:
    return token_id < 32 * len(allowed) and bool(int(allowed[token_id // 32]) >> token_id % 32 & 1)


def _permitted(row: ForwardRow, ids: list[int]) -> list[int]:
    """The tokens of a step; under a grammar only the first, or what is said in its place."""
    if row.allowed is None or not ids:
        return ids
    if _is_allowed(row.allowed, ids[0]):
        return ids[:1]
    bits = np.unpackbits(row.allowed.view(np.uint8), bitorder="little")
    bits[[each for each in row.banned_token_ids if each < len(bits)]] = 0
    allowed = np.flatnonzero(bits)
    if not len(allowed):
        raise _RowFault("the grammar allows no token.")
    return [int(allowed[np.searchsorted(allowed, ids[0]) % len(allowed)])]


def scripted_state(row: ForwardRow) -> NDArray[np.float32]:
    """The state of a prompt: `HIDDEN_SIZE` numbers from -1 to 1 that are the SHA-256 of its ids, or of its embeddings."""
    if row.input_embeds is None:
        content = np.array(row.token_ids[: row.num_prompt_tokens], dtype="<i4").tobytes()
    else:
        content = row.input_embeds.tobytes()
    return (np.frombuffer(sha256(content).digest(), dtype="<i4") / 2.0**31).astype(np.float32)


class _RowFault(Exception):
    """One row's request fails; the others go on."""


def load_scripted_executor(config: ServerConfig) -> ScriptedExecutor:
    """Make the scripted executor that the options ask for.

    Raises:
        StartupError: the script file cannot be used.
    """
    tokenizer = load_scripted_tokenizer()
    endless = tokenizer.encode(scripted_text(), add_special_tokens=False)
    pool_tokens = DEFAULT_POOL_TOKENS if config.max_total_tokens is None else config.max_total_tokens
    return ScriptedExecutor(
        capabilities=Capabilities(
            vocab_size=tokenizer.vocab_size,
            context_length=config.context_length or DEFAULT_CONTEXT_LENGTH,
            num_pages=max(1, pool_tokens // config.page_size),
            page_size=config.page_size,
            eos_token_ids=tokenizer.eos_token_ids,
            executor="scripted",
            hidden_size=HIDDEN_SIZE,
            has_logprobs=True,
            has_masks=True,
        ),
        endless=endless,
        book=None if config.script is None else _book(config.script, tokenizer, endless),
        step_s=config.scripted_step_ms / 1000,
    )


def _book(script: str, tokenizer: Tokenizer, endless: list[int]) -> ScriptBook:
    rules = None if script == INLINE else read_rules(Path(script))
    try:
        return ScriptBook(tokenizer=tokenizer, endless=endless, rules=rules)
    except MillstreamError as error:
        raise StartupError(f"the script `{script}` cannot be used: {error.message}") from error
