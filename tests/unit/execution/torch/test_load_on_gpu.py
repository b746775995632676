"""Loading as on a GPU, with the CPU in its place: bfloat16, pages in place, captured decodes, all wired together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import open_checkpoint
from millstream.config import ServerConfig
from millstream.execution.interface import Capabilities, ForwardBatch
from millstream.execution.torch import gpu, linear
from millstream.execution.torch.build import load_on_gpu
from millstream.execution.torch.decode_graphs import Compute
from millstream.execution.torch.device_sampler import DeviceSampler
from millstream.execution.torch.paged_attention import PagedAttention
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams
from tests.unit.execution.torch import paged_emulation
from tests.unit.execution.torch.families import make_model
from tests.unit.execution.torch.steps import greedy, load, logits_of, row
from tests.unit.scheduler.harness import Desk

MIB = 1 << 20


class StandIn:
    """What a GPU does, done by the CPU; counts what is asked of it."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def attention(self, model: ModelConfig, capabilities: Capabilities, device: torch.device) -> PagedAttention:
        return PagedAttention(
            model,
            kernel=paged_emulation.attend,
            page_size=capabilities.page_size,
            programs=4,
            context_length=capabilities.context_length,
            device=device,
        )

    def capture(self, compute: Compute) -> Compute:
        self.captured += 1

        def replay() -> object:
            self.replayed += 1
            return compute()

        return replay  # type: ignore[return-value]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * MIB, 10 * MIB))
    monkeypatch.setattr(gpu, "paged_attention", made.attention)
    monkeypatch.setattr(gpu, "GraphCapture", lambda device: made.capture)
    monkeypatch.setattr(linear.torch._C, "_has_mkldnn", False)  # its packed weights are for float32
    return made


def load_here(folder: Path, **options: object) -> TorchExecutor:
    config = ServerConfig(**{"page_size": 4, "max_running_requests": 6, "chunked_prefill_size": 16, **options})
    return load_on_gpu(config, open_checkpoint(resolve_model(str(folder))), 256, torch.device("cpu"))


@pytest.mark.parametrize("family", ["llama-tied", "qwen3", "mistral", "gemma3"])
def test_a_model_says_in_bfloat16_about_what_it_says_in_float32(tmp_path: Path, stand_in: StandIn, family: str) -> None:
    make_model(family, tmp_path)
    executor, reference = load_here(tmp_path), load(resolve_model(str(tmp_path)), page_size=4)
    ids = list(range(10, 50))
    ours = torch.log_softmax(logits_of(executor, ids, list(range(10)), [40]), 1)
    true = torch.log_softmax(logits_of(reference, ids, list(range(10)), [40]), 1)
    assert float((true.exp() * (true - ours)).sum(1).mean()) < 0.02
    assert float((ours.argmax(1) == true.argmax(1)).double().mean()) >= 0.9


def test_decodes_are_captured_at_load_and_say_what_whole_sequences_say(tmp_path: Path, stand_in: StandIn) -> None:
    make_model("qwen3", tmp_path)
    executor = load_here(tmp_path)
    assert stand_in.captured == 4  # 1, 2, 4 and 6 rows
    ids = list(range(10, 22))
    made = greedy(executor, ids, [3, 1, 4, 0, 5], 6)
    assert stand_in.replayed == 5
    logits = logits_of(executor, ids + made, [6, 7, 8, 9, 10], [len(ids + made)])
    near = logits[len(ids) - 1 : -1].topk(2).indices.tolist()
    assert all(token in best for token, best in zip(made, near, strict=True))


def test_the_pool_is_what_memory_leaves_and_the_scratch_page_is_beyond_it(tmp_path: Path, stand_in: StandIn) -> None:
    make_model("llama-tied", tmp_path)
    executor = load_here(tmp_path, mem_fraction_static=0.3)
    page_bytes = 4 * 4 * 2 * 2 * 8 * 2  # tokens, layers, keys and values, heads, head size, bfloat16
    assert executor.capabilities.num_pages == int(8 * MIB - 0.7 * 10 * MIB) // page_bytes
    last = executor.capabilities.num_pages - 1
    output = executor.forward(ForwardBatch([row(list(range(10, 14)), [last])]))
    assert len(output.token_ids[0]) == 1


def test_the_scheduler_s_requests_get_the_same_tokens_whatever_shares_their_steps(tmp_path: Path, stand_in: StandIn) -> None:
    make_model("llama-tied", tmp_path)
    said: list[list[list[int]]] = []
    for together in (False, True):
        desk = Desk(load_here(tmp_path, mem_fraction_static=0.5), chunked_prefill_size=16)
        for choice in range(4):
            prompt = list(range(10 + choice, 30 - 3 * choice))
            desk.submit(f"r-{choice}", prompt, max_new=7, seed=choice, ignore_eos=True, temperature=1.5 * (choice % 2))
            if not together:
                desk.run()
        desk.run()
        said.append([desk.tokens(f"r-{choice}") for choice in range(4)])
    assert stand_in.replayed > 20
    assert said[0] == said[1]


def test_a_step_with_a_fork_s_copies_is_replayed_after_them(tmp_path: Path, stand_in: StandIn) -> None:
    make_model("llama-tied", tmp_path)
    executor = load_here(tmp_path)
    ids = list(range(10, 21))
    expected = greedy(executor, ids, [0, 1, 2], 2)
    executor.forward(ForwardBatch([row(ids, [3, 4, 5])]))
    fork = row([*ids, expected[0]], [3, 4, 6], 11, num_prompt_tokens=11)
    fork.copies = ((5, 6),)
    before = stand_in.replayed
    assert executor.forward(ForwardBatch([fork])).token_ids == [expected[1:]]
    assert stand_in.replayed == before + 1


def test_rows_that_sample_draw_on_the_device(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model("llama-tied", tmp_path)
    executor = load_here(tmp_path)
    raced: list[int] = []
    race = DeviceSampler._race
    monkeypatch.setattr(DeviceSampler, "_race", lambda *args: raced.append(len(args[2])) or race(*args))
    executor.forward(ForwardBatch([row(list(range(10, 22)), [0, 1, 2])]))
    sampling = SamplingParams(temperature=1.0, top_p=0.9)
    rows = [row(list(range(10, 22)), [0, 1, 2], 11, sampling=sampling, seed=seed, num_prompt_tokens=11) for seed in range(3)]
    assert all(executor.forward(ForwardBatch(rows)).token_ids)
    assert raced == [3]
