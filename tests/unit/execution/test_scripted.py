"""ScriptedExecutor: what it answers and when, on a clock of the test's own."""

from __future__ import annotations

import json
import math
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millstream.config import ServerConfig
from millstream.errors import EngineError, StartupError
from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.scripted import ScriptedExecutor, _book, load_scripted_executor
from millstream.execution.scripted_rules import Script
from millstream.messages import SamplingParams
from millstream.messages.details import LogprobParams, no_logprobs
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, scripted_text

EOS = 2
TOKENIZER: Tokenizer = load_scripted_tokenizer()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Left(Exception):
    """The process would be gone."""


def make(script: str | None = "inline", *, step_ms: float = 0.0, **options: Any) -> tuple[ScriptedExecutor, Time]:
    config = ServerConfig(executor="scripted", script=script, scripted_step_ms=step_ms, **options)
    made = load_scripted_executor(config)
    time = Time()

    def leave(status: int) -> None:
        raise Left(status)

    endless = encode(scripted_text())
    executor = ScriptedExecutor(
        capabilities=made.capabilities,
        endless=endless,
        book=None if script is None else _book(script, TOKENIZER, endless),
        step_s=step_ms / 1000,
        clock=time.clock,
        sleep=time.sleep,
        leave=leave,
    )
    return executor, time


def make_row(prompt: str, *, rid: str = "r", sample: bool = True, banned: tuple[int, ...] = (), **sampling: Any) -> ForwardRow:
    ids = encode(prompt)
    return ForwardRow(
        rid=rid,
        token_ids=ids,
        num_prompt_tokens=len(ids),
        start=0,
        end=len(ids),
        pages=(),
        sampling=SamplingParams(**sampling),
        seed=0,
        sample=sample,
        banned_token_ids=banned,
    )


def scripted(*pieces: Any, **more: Any) -> str:
    return f"<script>{json.dumps({'pieces': list(pieces), **more})}</script>"


def steps(executor: ScriptedExecutor, row: ForwardRow, count: int) -> list[list[int]]:
    made = []
    for _ in range(count):
        output = executor.forward(ForwardBatch([row]))
        assert not output.errors, output.errors
        made.append(output.token_ids[0])
        row.token_ids.extend(output.token_ids[0])  # type: ignore[attr-defined]
    return made


def test_without_a_script_every_prompt_gets_the_built_in_text_over_and_over() -> None:
    executor, _ = make(None)
    endless = encode(scripted_text())
    row = make_row("hi")
    made = [token_id for step in steps(executor, row, len(endless) + 3) for token_id in step]
    assert made == endless + endless[:3]
    assert TOKENIZER.decode(made[: len(endless)]) == scripted_text()


def test_a_prefill_chunk_gets_nothing() -> None:
    executor, time = make(None)
    assert executor.forward(ForwardBatch([make_row("hi", sample=False)])).token_ids == [[]]
    executor, time = make()
    assert executor.forward(ForwardBatch([make_row("hi", sample=False)])).token_ids == [[]]
    assert time.slept == []


def test_each_piece_is_a_step_and_a_list_is_one_step() -> None:
    executor, _ = make()
    row = make_row(scripted("A", ["B", "<|im_end|>", " junk"], {"bytes": "f09f"}, {"ids": [7, 8]}))
    made = steps(executor, row, 4)
    assert made[0] == encode("A")
    assert made[1] == [*encode("B"), EOS, *encode(" junk")]
    assert len(made[2]) == 2
    assert TOKENIZER.decode([*made[2], *made[2]]) == b"\xf0\x9f\xf0\x9f".decode(errors="replace")
    assert made[3] == [7, 8]


def ends(executor: ScriptedExecutor, row: ForwardRow, count: int) -> list[bool]:
    """For each of `count` steps, whether the executor says that it was the last."""
    said = []
    for _ in range(count):
        output = executor.forward(ForwardBatch([row]))
        row.token_ids.extend(output.token_ids[0])  # type: ignore[attr-defined]
        said.append(0 in output.finished)
    return said


@pytest.mark.parametrize(
    ("script", "sampling", "expected"),
    [
        pytest.param(scripted("A", "B"), {}, [False, True], id="with-its-last-piece"),
        pytest.param(scripted(), {}, [True], id="at-once-without-pieces"),
        pytest.param(scripted("A", finish="length"), {}, [False] * 4, id="never-by-length"),
        pytest.param(scripted("A"), {"ignore_eos": True}, [False] * 4, id="never-with-ignore-eos"),
        pytest.param(scripted("A"), {"min_new_tokens": 3}, [False, False, True], id="not-before-min-new-tokens"),
        pytest.param(scripted("A", fault={"kind": "error", "after": 1}), {}, [False], id="a-fault-comes-after-it"),
    ],
)
def test_a_script_ends_with_its_last_piece(script: str, sampling: dict[str, Any], expected: list[bool]) -> None:
    executor, _ = make()
    assert ends(executor, make_row(script, **sampling), len(expected)) == expected


@pytest.mark.parametrize("byte", range(256))
def test_a_byte_is_one_token_that_decodes_to_it(byte: int) -> None:
    executor, _ = make()
    (ids,) = steps(executor, make_row(scripted({"bytes": f"{byte:02x}"})), 1)
    assert len(ids) == 1
    assert TOKENIZER.decode(ids) == bytes([byte]).decode(errors="replace")


def test_a_script_that_finishes_by_length_goes_on_with_the_built_in_text() -> None:
    executor, _ = make()
    made = steps(executor, make_row(scripted("A", finish="length")), 3)
    assert made == [encode("A"), *[[token_id] for token_id in encode(scripted_text())[:2]]]


def test_under_ignore_eos_the_built_in_text_follows() -> None:
    executor, _ = make()
    made = steps(executor, make_row(scripted("A"), ignore_eos=True), 3)
    assert made == [encode("A"), *[[token_id] for token_id in encode(scripted_text())[:2]]]


def test_a_banned_token_is_replaced() -> None:
    executor, _ = make()
    row = make_row(scripted("A", "<|im_end|>"), banned=(EOS, *encode("A")), min_new_tokens=3)
    first = steps(executor, row, 3)
    assert not {EOS, *encode("A")} & {token_id for step in first for token_id in step}


def test_a_step_of_several_tokens_bans_only_those_before_min_new_tokens() -> None:
    executor, _ = make()
    (stop,) = encode("<|im_end|>")
    row = make_row(scripted(["a", "<|im_end|>", "b"]), banned=(stop,), min_new_tokens=1)
    assert steps(executor, row, 1) == [[*encode("a"), stop, *encode("b")]]
    row = make_row(scripted(["a", "<|im_end|>", "b"]), rid="s", banned=(stop,), min_new_tokens=2)
    assert stop not in steps(executor, row, 1)[0]


def test_the_last_script_of_a_prompt_counts_and_none_means_the_built_in_text() -> None:
    executor, _ = make()
    assert steps(executor, make_row(scripted("A") + "then" + scripted("B")), 1) == [encode("B")]
    assert steps(executor, make_row("plain", rid="s"), 1) == [encode(scripted_text())[:1]]


def test_what_a_row_gets_does_not_depend_on_the_batch_or_on_interruptions() -> None:
    executor, _ = make()
    prompt = scripted(["a", "b"], "c", ["d", "e", "f"])
    alone = steps(executor, make_row(prompt, rid="alone"), 4)
    row = make_row(prompt)
    made = []
    for number in range(4):
        others = [make_row("x", rid=f"{number}-{i}") for i in range(300)]
        made.append(executor.forward(ForwardBatch([*others, row])).token_ids[-1])
        row.token_ids.extend(made[-1])  # type: ignore[attr-defined]
        executor.forward(ForwardBatch(others[:1]))  # pushes the state of `row` out
    assert made == alone


def test_a_step_that_was_cut_goes_on_where_it_was_cut() -> None:
    executor, _ = make()
    row = make_row(scripted({"ids": [7, 8, 9]}, "x"))
    row.token_ids.append(7)  # type: ignore[attr-defined]
    assert steps(executor, row, 2) == [[8, 9], encode("x")]


def test_a_rid_used_again_gets_its_own_script() -> None:
    executor, _ = make()
    assert steps(executor, make_row(scripted("A")), 1) == [encode("A")]
    assert steps(executor, make_row(scripted("B")), 1) == [encode("B")]


@pytest.mark.parametrize(
    "script",
    [
        "not json",
        '{"pieces": 3}',
        '{"piece": []}',
        '{"match": "a"}',
        '{"pieces": [{"ids": [99999]}]}',
        '{"pieces": [{"bytes": "f"}]}',
        '{"step_ms": -5}',
        '{"delay_ms": NaN}',
        '{"delay_ms": 1e308}',
        '{"fault": {"kind": "error", "after": -1}}',
    ],
)
def test_a_bad_script_in_a_prompt_ends_its_row_alone(script: str) -> None:
    executor, _ = make()
    batch = ForwardBatch([make_row(f"<script>{script}</script>"), make_row(scripted("A"), rid="s")])
    output = executor.forward(batch)
    assert list(output.errors) == [0]
    assert "script" in output.errors[0]
    assert output.token_ids[1] == encode("A")


def test_the_first_rule_whose_text_is_in_the_prompt_counts(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rules": [{"match": "Rome", "pieces": ["A"]}, {"pieces": ["B"]}, {"pieces": ["C"]}]}))
    executor, _ = make(str(path))
    assert steps(executor, make_row("about Rome"), 1) == [encode("A")]
    assert steps(executor, make_row("about Paris", rid="s"), 1) == [encode("B")]


@pytest.mark.parametrize(
    "text",
    [None, "{", '{"rules": 1}', '{"pieces": []}', '{"rules": [{"unknown": 1}]}', '{"rules": [{"pieces": [{"ids": [-1]}]}]}'],
)
def test_a_bad_script_file_stops_the_start(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "rules.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartupError, match=r"rules\.json"):
        load_scripted_executor(ServerConfig(executor="scripted", script=str(path)))


def test_a_delayed_row_does_not_stall_others_and_waiting_alone_does_not_spin() -> None:
    executor, time = make()
    slow, quick = make_row(scripted("S", delay_ms=25)), make_row("x", rid="q")
    assert executor.forward(ForwardBatch([slow, quick])).token_ids == [[], encode(scripted_text())[:1]]
    assert time.slept == []
    made = []
    while not made:
        made = executor.forward(ForwardBatch([slow])).token_ids[0]
    assert made == encode("S")
    assert time.slept == pytest.approx([0.010, 0.010, 0.005])


def test_a_gap_between_steps_is_kept_for_each_row() -> None:
    executor, time = make()
    row = make_row(scripted("a", "b", step_ms=4))
    assert steps(executor, row, 3) == [encode("a"), [], encode("b")]
    assert time.slept == pytest.approx([0.004])


def test_paced_steps_end_on_ticks_a_step_apart() -> None:
    executor, time = make(None, step_ms=10)
    row = make_row("x")
    steps(executor, row, 1)
    time.now += 0.003  # the scheduler's own work is part of the step
    steps(executor, row, 1)
    assert time.slept == pytest.approx([0.010, 0.007])
    time.now += 5.0  # idle: no steps are made up for
    steps(executor, row, 1)
    assert time.slept[-1] == pytest.approx(0.010)


def test_faults_come_after_their_steps() -> None:
    executor, time = make()
    row = make_row(scripted("a", "b", fault={"kind": "error", "after": 1}))
    assert steps(executor, row, 1) == [encode("a")]
    assert list(executor.forward(ForwardBatch([row])).errors) == [0]
    with pytest.raises(EngineError):
        executor.forward(ForwardBatch([make_row(scripted("a", fault={"kind": "raise"}), rid="s")]))
    with pytest.raises(Left):
        executor.forward(ForwardBatch([make_row(scripted("a", fault={"kind": "exit"}), rid="t")]))
    hung = make_row(scripted("a", "b", fault={"kind": "hang", "seconds": 3}), rid="u")
    assert steps(executor, hung, 2) == [encode("a"), encode("b")]
    assert time.slept == [3.0]


def test_capabilities_follow_the_options() -> None:
    capabilities = load_scripted_executor(ServerConfig(executor="scripted")).capabilities
    assert capabilities.num_pages * capabilities.page_size >= 1024 * 1024
    assert capabilities.context_length == 131_072
    assert capabilities.vocab_size == TOKENIZER.vocab_size
    assert EOS in capabilities.eos_token_ids
    small = load_scripted_executor(
        ServerConfig(executor="scripted", context_length=100, max_total_tokens=64, page_size=8)
    ).capabilities
    assert (small.context_length, small.num_pages, small.page_size) == (100, 8, 8)


def test_steps_are_counted_by_the_tokens_they_brought() -> None:
    executor, _ = make()
    assert executor is not None
    book = _book("inline", TOKENIZER, encode(scripted_text()))
    script: Script = book.script_for(encode(scripted(["a", "b"], "c")))
    assert [script.num_steps(position) for position in range(5)] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(None, id="built-in"),
        pytest.param({"pieces": ["a", ["b", "c"], "d", "e"]}, id="ends"),
        pytest.param({"pieces": ["a", "b"], "finish": "length"}, id="goes-on"),
        pytest.param({"pieces": ["a", "b", "c", "d"], "fault": {"kind": "error", "after": 3}}, id="fault"),
        pytest.param({"pieces": ["a", "<|im_end|>", "b", "<|im_end|>", "c"]}, id="stop-before-it-may"),
    ],
)
@pytest.mark.parametrize("wrong_at", [0, 1, 2, 3, 99])
def test_a_draft_brings_the_same_tokens_in_fewer_steps(script: dict[str, Any] | None, wrong_at: int) -> None:
    def run(guess: bool, truth: list[int]) -> tuple[list[int], str | None, int]:
        executor, _ = make(None if script is None else "inline")
        row = make_row("hi" if script is None else scripted(**script), min_new_tokens=3, banned=(EOS,))
        made: list[int] = []
        for count in range(1, 9):
            row.draft = truth[len(made) : len(made) + 4] if guess else []
            if len(row.draft) > wrong_at:
                row.draft[wrong_at] += 1  # type: ignore[index]
            row.banned_token_ids = (EOS,) if len(made) < 3 else ()
            output = executor.forward(ForwardBatch([row]))
            made += output.token_ids[0]
            row.token_ids.extend(output.token_ids[0])  # type: ignore[attr-defined]
            if output.errors or output.finished:
                return made, "error" if output.errors else "finished", count
        return made, None, count

    truth, end, _ = run(False, [])
    made, guessed_end, count = run(True, truth)
    assert made[: len(truth)] == truth
    assert guessed_end == end or len(made) > len(truth)
    if wrong_at == 99:
        assert count < 8 or len(made) > len(truth)


def test_the_state_of_a_prompt_follows_from_its_ids_or_from_the_embeddings_in_their_place() -> None:
    executor, _ = make(None)
    rows = [make_row(prompt, sample=False) for prompt in ("a", "b", "a")]
    rows[2].input_embeds = np.ones((1, 8), np.float32)
    for row in rows[:2]:
        row.wants_hidden = True
    rows.append(make_row("a", sample=False))
    rows[3].wants_hidden, rows[3].input_embeds = True, np.ones((1, 8), np.float32)
    first, second, _, embedded = (executor.forward(ForwardBatch(rows)).hidden.get(index) for index in range(4))
    expected = np.frombuffer(sha256(np.array(encode("a"), "<i4").tobytes()).digest(), "<i4") / 2.0**31
    np.testing.assert_array_equal(first, expected.astype(np.float32))
    assert len({values.tobytes() for values in (first, second, embedded) if values is not None}) == 3
    rows[0].end = 0  # a chunk before the last
    assert executor.forward(ForwardBatch(rows[:1])).hidden == {}


def zipf(rank: int) -> float:
    """The log probability of the id at this rank of the scripted distribution."""
    size = TOKENIZER.vocab_size
    return -math.log(rank + 1) - math.log(math.fsum(1 / (each + 1) for each in range(size)))


@pytest.mark.parametrize("script", [None, "inline"])
def test_what_is_said_is_the_most_likely_and_the_other_ids_follow_round_the_vocabulary(script: str | None) -> None:
    executor, _ = make(script)
    row = make_row(scripted({"ids": [TOKENIZER.vocab_size - 1]}, ["two ", "pieces"]))
    row.logprobs = LogprobParams(top=3, token_ids=(0, TOKENIZER.vocab_size - 2))
    output = executor.forward(ForwardBatch([row]))
    said, told = output.token_ids[0], output.logprobs[0]
    assert told.chosen == pytest.approx([zipf(0)] * len(said), abs=1e-6)
    for token_id, ids, values, asked in zip(said, told.top_ids, told.top, told.asked, strict=True):
        assert ids == [(token_id + rank) % TOKENIZER.vocab_size for rank in range(3)]
        assert values == pytest.approx([zipf(rank) for rank in range(3)], abs=1e-6)
        assert asked[0] == pytest.approx(zipf(-token_id % TOKENIZER.vocab_size), abs=1e-6)
    assert output.prompt_logprobs == {}


@pytest.mark.parametrize("size", [1, 3, 600])
def test_a_prompt_is_expected_to_count_up_however_it_is_cut(size: int) -> None:
    executor, _ = make(None)
    row = make_row("hi")
    row.token_ids = [5, 6, 6, 5, TOKENIZER.vocab_size - 1, 0] * 100
    row.num_prompt_tokens = len(row.token_ids)
    row.logprobs = LogprobParams(top=1, prompt_start=2)
    told = no_logprobs()
    for start in range(0, 600, size):
        row.start, row.end = start, min(start + size, 600)
        row.sample = row.end == 600
        told.extend(executor.forward(ForwardBatch([row])).prompt_logprobs.get(0, no_logprobs()))
    assert len(told.chosen) == 598
    pairs = list(zip(row.token_ids[1:], row.token_ids[2:], strict=False))
    ranks = [(token_id - before - 1) % TOKENIZER.vocab_size for before, token_id in pairs]
    assert told.chosen == pytest.approx([zipf(rank) for rank in ranks], abs=1e-6)
    assert [ids[0] for ids in told.top_ids] == [(before + 1) % TOKENIZER.vocab_size for before, _ in pairs]


def test_tokens_of_a_draft_and_rows_that_failed_are_told_of_as_they_are() -> None:
    executor, _ = make(None)
    endless = encode(scripted_text())
    row = make_row("hi")
    row.draft, row.logprobs = endless[:3], LogprobParams()
    assert len(executor.forward(ForwardBatch([row])).logprobs[0].chosen) == 4
    executor, _ = make()
    row = make_row(scripted("a", fault={"kind": "error"}))
    row.logprobs = LogprobParams(prompt_start=0)
    output = executor.forward(ForwardBatch([row]))
    assert (list(output.errors), output.logprobs, output.prompt_logprobs) == ([0], {}, {})
