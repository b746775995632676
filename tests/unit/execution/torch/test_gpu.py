"""How large a GPU's KV pool is, and what is done where its kernel cannot run."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import load_model_config
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities
from millstream.execution.torch.gpu import paged_attention, pool_pages, try_kernel
from tests.unit.execution.torch import paged_emulation

GIB = 1 << 30


def pages(*, free: int = 60 * GIB, total: int = 80 * GIB, **options: object) -> int:
    return pool_pages(ServerConfig(page_size=16, **options), bytes_per_token=1 << 16, free=free, total=total)  # type: ignore[arg-type]


def test_the_pool_takes_the_share_of_memory_that_the_weights_leave_of_it() -> None:
    # 20 GiB are taken, 0.85 * 80 are for weights and pool: 48 GiB of pages of 1 MiB
    assert pages() == 48 * 1024
    assert pages(mem_fraction_static=0.5) == 20 * 1024
    assert pages(mem_fraction_static=1.0) == 60 * 1024


def test_tokens_that_were_asked_for_are_what_the_pool_holds() -> None:
    assert pages(max_total_tokens=1000, mem_fraction_static=0.5) == 62


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"mem_fraction_static": 0.25}, "mem_fraction_static is 0.25", id="weights-take-it-all"),
        pytest.param({"max_total_tokens": 15}, "less than one page", id="no-page"),
        pytest.param({"max_total_tokens": 10**6}, "62,500 MiB", id="more-than-there-is"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        pages(**options)


def test_a_share_of_memory_is_above_nothing_and_at_most_all() -> None:
    for share in (0.0, 1.5, -1.0):
        with pytest.raises(StartupError, match="mem_fraction_static"):
            ServerConfig(mem_fraction_static=share).check()


def test_a_kernel_is_tried_before_anybody_relies_on_it() -> None:
    try_kernel(paged_emulation.attend, torch.device("cpu"))

    def wrong(out: torch.Tensor, queries: torch.Tensor, *rest: object, **options: object) -> None:
        out.copy_(queries)

    with pytest.raises(RuntimeError, match="wrong results"):
        try_kernel(wrong, torch.device("cpu"))


def test_without_triton_there_is_no_paged_attention_and_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "millstream.execution.torch.paged_kernel", None)
    capabilities = Capabilities(100, 64, 8, 16, frozenset())
    with caplog.at_level(logging.WARNING):
        assert paged_attention(load_model_config(resolve_model("embedded")), capabilities, torch.device("cpu")) is None
    assert "the paged attention kernel cannot run" in caplog.text
