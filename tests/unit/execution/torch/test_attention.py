"""The two attention backends against each other: gather and torch, pages in place.

The kernel itself runs where Triton is installed: on a GPU, or interpreted. Its emulation runs everywhere.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace

import pytest
import torch

from millstream.checkpoint.config import ModelConfig, RopeConfig
from millstream.execution.interface import ForwardRow
from millstream.execution.torch.gather_attention import GatherAttention
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.paged_attention import MAX_SPLITS, Launch, PagedAttention, PagedKernel, PagedRows
from tests.unit.execution.torch import paged_emulation
from tests.unit.execution.torch.steps import row

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
PAGES = 64
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # lanes without a query, interpreted


def kernel_of(name: str) -> PagedKernel:
    if name == "emulation":
        return paged_emulation.attend
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if not HAS_GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251  read as the kernel is defined
    from millstream.execution.torch import paged_kernel

    return paged_kernel.attend


@dataclass(frozen=True)
class Shape:
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    page_size: int = 4
    dtype: torch.dtype = torch.float32

    def config(self) -> ModelConfig:
        return ModelConfig(
            architecture="llama", vocab_size=128, context_length=4096, hidden_size=32, num_layers=1, num_heads=self.heads,
            num_kv_heads=self.kv_heads, head_dim=self.head_dim, ffn_size=32, rms_eps=1e-5, rope=RopeConfig(theta=1e4),
            tie_embeddings=True, attention_scale=self.head_dim**-0.5,
        )  # fmt: skip


def rows_of(parts: list[tuple[int, int]], page_size: int) -> list[ForwardRow]:
    """Rows that compute positions start to end - 1, on pages of their own in no order."""
    pages = torch.randperm(PAGES, generator=torch.Generator().manual_seed(len(parts))).tolist()
    return [row([3] * end, [pages.pop() for _ in range(-(-end // page_size))], start, end) for start, end in parts]


@torch.inference_mode()
def attended(
    shape: Shape, rows: list[ForwardRow], window: int | None, kernel: PagedKernel | None, programs: int = 1
) -> torch.Tensor:
    """What the rows' queries make of a store of random keys and values; the unused of it is NaN."""
    device = torch.device("cuda" if HAS_GPU else "cpu")
    torch.set_num_threads(1)
    config = shape.config()
    generator = torch.Generator().manual_seed(5)
    store = KVStore(config, num_pages=PAGES, page_size=shape.page_size, device=device, dtype=shape.dtype)
    store.layers[0].copy_(torch.randn(store.layers[0].shape, generator=generator))
    if kernel is not None:
        used = [
            part.pages[at // shape.page_size] * shape.page_size + at % shape.page_size
            for part in rows
            for at in range(part.end)
        ]
        unused = sorted(set(range(PAGES * shape.page_size)) - set(used))
        store.layers[0].flatten(0, 1)[unused] = float("nan")
    tokens = sum(part.end - part.start for part in rows)
    width = shape.heads + 2 * shape.kv_heads
    queries = torch.randn(tokens, width, shape.head_dim, generator=generator).to(device, shape.dtype)[:, : shape.heads]
    if kernel is None:
        backend: GatherAttention | PagedAttention = GatherAttention(
            page_size=shape.page_size, device=device, dtype=torch.float32
        )
    else:
        backend = PagedAttention(
            config,
            kernel=kernel,
            page_size=shape.page_size,
            programs=programs,
            context_length=config.context_length,
            device=device,
        )
    return backend.plan(rows, [window])[window].attend(queries, store, 0, config.attention_scale)


CASES = [
    pytest.param([(0, 1)], id="one-token"),
    pytest.param([(36, 37), (0, 1), (6, 7), (99, 100)], id="decodes"),
    pytest.param([(0, 37)], id="a-whole-prompt"),
    pytest.param([(30, 80)], id="a-later-chunk"),
    pytest.param([(8, 9), (0, 45), (31, 34), (63, 64), (16, 40)], id="all-together"),
]


@pytest.mark.parametrize("kernel", ["emulation", "kernel"])
@pytest.mark.parametrize("programs", [1, 64], ids=["whole", "split"])
@pytest.mark.parametrize("window", [None, 1, 11])
@pytest.mark.parametrize("parts", CASES)
def test_both_backends_agree_and_unused_slots_are_not_read(
    parts: list[tuple[int, int]], window: int | None, programs: int, kernel: str
) -> None:
    shape = Shape()
    rows = rows_of(parts, shape.page_size)
    expected = attended(shape, rows, window, None)
    torch.testing.assert_close(attended(shape, rows, window, kernel_of(kernel), programs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["emulation", "kernel"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(heads=9, kv_heads=3, head_dim=64, page_size=16), id="smollm2"),
        pytest.param(Shape(heads=4, kv_heads=4, head_dim=80, page_size=3), id="heads-of-80-pages-of-3"),
        pytest.param(Shape(heads=20, kv_heads=1, head_dim=32, page_size=32), id="more-heads-a-key-than-lanes"),
        pytest.param(Shape(heads=4, kv_heads=1, head_dim=256, page_size=1), id="heads-of-256-pages-of-1"),
    ],
)
def test_both_backends_agree_for_models_of_other_shapes(shape: Shape, kernel: str) -> None:
    rows = rows_of([(8, 9), (0, 20), (23, 24)], shape.page_size)
    expected = attended(shape, rows, None, None)
    for programs in (1, 32):
        torch.testing.assert_close(attended(shape, rows, None, kernel_of(kernel), programs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["emulation", "kernel"])
def test_in_half_precision_the_kernel_is_as_near_to_the_truth_as_that_is(kernel: str) -> None:
    # Triton's interpreter keeps bfloat16 as integers, and multiplies those
    dtype = torch.bfloat16 if HAS_GPU or kernel == "emulation" else torch.float16
    shape = Shape(heads=9, kv_heads=3, head_dim=64, page_size=16)
    rows = rows_of([(8, 9), (0, 20), (150, 151)], shape.page_size)
    expected = attended(shape, rows, None, None)
    for programs in (1, 32):
        out = attended(replace(shape, dtype=dtype), rows, None, kernel_of(kernel), programs)
        torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


def test_a_launch_has_programs_for_the_device_and_no_more() -> None:
    seen: list[tuple[int, int]] = []

    def kernel(
        out: torch.Tensor,
        queries: torch.Tensor,
        pages: torch.Tensor,
        rows: PagedRows,
        launch: Launch,
        *,
        window: int | None,
        scale: float,
    ) -> None:
        seen.append((len(launch.rows), launch.splits))

    shape = Shape()
    for decodes in (1, 4, 32):
        attended(shape, rows_of([(3, 4)] * decodes, 4), None, kernel, programs=128)
    assert seen == [(1, min(16, MAX_SPLITS)), (4, 16), (32, 2)]  # 4,096 tokens of context are 16 shares of 256
