"""TorchExecutor as the scheduler meets it: sampling, faults of one row, options that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import load_model_config
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import ForwardBatch
from millstream.execution.machine import pool_pages
from millstream.execution.registry import load_executor
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams
from tests.unit.execution.torch.families import POISON, make_poisoned_model
from tests.unit.execution.torch.steps import greedy, load, row
from tests.unit.scheduler.harness import Desk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_poisoned_model(tmp_path_factory.mktemp("mistral"))


@pytest.fixture
def executor(folder: Path) -> TorchExecutor:
    return load(resolve_model(str(folder)), page_size=4, max_total_tokens=64)


def test_only_rows_that_ask_for_it_get_a_token(executor: TorchExecutor) -> None:
    ids = list(range(10, 22))
    output = executor.forward(ForwardBatch([row(ids, [0, 1, 2], 0, 8), row(ids[:3], [3])]))
    assert output.token_ids[0] == []
    assert len(output.token_ids[1]) == 1
    assert not output.errors


def test_an_empty_batch_makes_nothing(executor: TorchExecutor) -> None:
    assert executor.forward(ForwardBatch([])).token_ids == []


def test_the_sampled_token_is_the_best_of_the_last_position(executor: TorchExecutor) -> None:
    ids = list(range(10, 22))
    (logits,) = executor.forward_logits(ForwardBatch([row(ids, [0, 1, 2])]))
    assert greedy(executor, ids, [3, 4, 5], 1) == [int(logits[-1].argmax())]


def test_banned_tokens_are_not_drawn(executor: TorchExecutor) -> None:
    ids = list(range(10, 22))
    (best,) = greedy(executor, ids, [0, 1, 2], 1)
    asking = row(ids, [0, 1, 2])
    asking.banned_token_ids = (best,)
    assert executor.forward(ForwardBatch([asking])).token_ids[0] != [best]


def test_a_seeded_row_draws_the_same_alone_and_in_a_batch(executor: TorchExecutor) -> None:
    ids = list(range(10, 22))
    sampling = SamplingParams(temperature=2.0)
    alone = executor.forward(ForwardBatch([row(ids, [0, 1, 2], sampling=sampling, seed=4)])).token_ids
    rows = [row(ids[:7], [4, 5], sampling=sampling, seed=8), row(ids, [7, 8, 9], sampling=sampling, seed=4)]
    assert executor.forward(ForwardBatch(rows)).token_ids[1] == alone[0]


def test_a_fork_s_pages_are_copied_before_anything_is_computed(executor: TorchExecutor) -> None:
    ids = list(range(10, 21))  # two pages of four and three tokens
    expected = greedy(executor, ids, [0, 1, 2], 2)
    executor.forward(ForwardBatch([row(ids, [3, 4, 5])]))
    first = row([*ids, 99], [3, 4, 5], 11, num_prompt_tokens=11)  # it writes into the page that the fork copies
    fork = row(ids, [3, 4, 6], 10)
    fork.copies = ((5, 6),)
    output = executor.forward(ForwardBatch([first, fork]))
    assert output.token_ids[1] == expected[:1]
    ids += expected[:1]
    assert executor.forward(ForwardBatch([row(ids, [3, 4, 6], 11, num_prompt_tokens=11)])).token_ids[0] == expected[1:]


def test_choices_of_one_call_say_what_requests_of_their_own_would(folder: Path) -> None:
    prompt = list(range(10, 33))
    said: dict[str, list[list[int]]] = {}
    for how in ("alone", "forked", "forked without a prefix cache"):
        at = Desk(
            load(resolve_model(str(folder)), page_size=4, max_total_tokens=256),
            share_prefixes=how == "forked",
            chunked_prefill_size=16,
        )
        for choice in range(6):
            at.submit(
                f"c-{choice}", prompt, max_new=9, call="" if how == "alone" else "c", seed=choice, ignore_eos=True,
                temperature=1.5 * (choice % 2),
            )  # fmt: skip
            if how == "alone":
                at.run()
        at.run()
        said[how] = [at.tokens(f"c-{choice}") for choice in range(6)]
        assert how == "alone" or [at.rows(f"c-{choice}")[-1].usage.cached_tokens for choice in range(6)] == [0] + [22] * 5
    assert said["forked"] == said["forked without a prefix cache"] == said["alone"]


def test_a_row_that_makes_infinities_fails_alone_and_leaves_its_pages_usable(executor: TorchExecutor) -> None:
    ids = list(range(10, 22))
    expected = greedy(executor, ids, [0, 1, 2, 3], 4)
    output = executor.forward(ForwardBatch([row([POISON] * 11, [4, 5, 6]), row(ids, [7, 8, 9])]))
    assert list(output.errors) == [0]
    assert output.token_ids == [[], expected[:1]]
    # two rows of unlike length share a padded group and the poisoned row's pages
    rows = [row(ids[:5], [4, 5], 4), row(ids, [6, 10, 11], 11)]
    executor.forward_logits(ForwardBatch([row(ids[:4], [4, 5]), row(ids[:11], [6, 10, 11])]))
    assert all(bool(torch.isfinite(logits).all()) for logits in executor.forward_logits(ForwardBatch(rows)))
    assert greedy(executor, ids, [4, 5, 6, 10], 4) == expected


@pytest.mark.parametrize("prompt", [[POISON] * 11, [POISON, *range(10, 20)], [*range(10, 16), POISON, 17, 18, 19, 20]])
def test_infinities_in_a_chunk_of_a_prompt_are_found_before_anybody_could_share_it(
    executor: TorchExecutor, prompt: list[int]
) -> None:
    ids = list(range(10, 22))
    expected = greedy(executor, ids, [0, 1, 2, 3], 4)
    output = executor.forward(ForwardBatch([row(prompt, [4, 5, 6], 0, 8), row(ids, [7, 8, 9]), row(ids, [10, 11], 0, 5)]))
    assert list(output.errors) == [0]
    assert output.token_ids == [[], expected[:1], []]
    assert greedy(executor, ids, [4, 5, 6, 12], 4) == expected
    alone = executor.forward(ForwardBatch([row(prompt, [4, 5, 6], 0, 8)]))  # a step in which nobody samples
    assert list(alone.errors) == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"context_length": 257}, "at most 256 tokens", id="context"),
        pytest.param({"max_total_tokens": 3, "page_size": 4}, "less than one page", id="pool"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(folder: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        load(resolve_model(str(folder)), **options)


def test_a_shorter_context_can_be_asked_for(folder: Path) -> None:
    assert load(resolve_model(str(folder)), context_length=100).capabilities.context_length == 100


def test_the_default_pool_holds_eight_contexts_where_memory_allows(folder: Path) -> None:
    executor = load(resolve_model(str(folder)), max_total_tokens=None)
    assert executor.capabilities.num_pages * executor.capabilities.page_size == 8 * 256


def test_the_default_pool_stays_within_2_gib() -> None:
    config = load_model_config(resolve_model("embedded"))
    bytes_per_token = config.num_layers * 2 * config.num_kv_heads * config.head_dim * 4
    options = ServerConfig(page_size=16)
    pages = pool_pages(options, context_length=10**6, bytes_per_token=bytes_per_token, memory=1 << 40)
    assert (2 << 30) - 16 * bytes_per_token <= pages * 16 * bytes_per_token <= 2 << 30


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("model.layers.2.mlp.up_proj.weight", "no such tensor", id="missing"),
        pytest.param(None, "shape", id="shape"),
    ],
)
def test_a_checkpoint_without_the_weights_it_promises_is_refused(
    folder: Path, tmp_path: Path, name: str | None, message: str
) -> None:
    weights = load_file(folder / "model.safetensors")
    if name is None:
        weights["model.norm.weight"] = torch.zeros(3)
    else:
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(StartupError, match=message):
        load(resolve_model(str(tmp_path)))


def test_the_registry_loads_the_executor_that_the_options_name(folder: Path) -> None:
    config = ServerConfig(threads=1, max_total_tokens=64)
    assert isinstance(load_executor(config, resolve_model(str(folder))), TorchExecutor)
    with pytest.raises(StartupError, match="needs a model"):
        load_executor(config, None)
