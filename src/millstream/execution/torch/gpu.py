"""What only a GPU needs: the size of its KV pool, the paged kernel, captured steps. Called by `build`."""

from __future__ import annotations

import logging
import subprocess
from functools import partial

import torch

from millstream.checkpoint.config import ModelConfig
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardRow
from millstream.execution.machine import asked_pages
from millstream.execution.torch.decode_buffers import DecodeBuffers
from millstream.execution.torch.decode_graphs import Compute, DecodeGraphs, decode_step, graph_sizes
from millstream.execution.torch.decoder import Decoder
from millstream.execution.torch.device_sampler import Judged
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.paged_attention import MIN_LANES, Launch, PagedAttention, PagedKernel, PagedRows
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams

log = logging.getLogger(__name__)

DEFAULT_MEM_FRACTION = 0.85
PROGRAMS = 2  # of a kernel on each multiprocessor, so that one works while the other waits for memory


def pool_pages(config: ServerConfig, *, bytes_per_token: int, free: int, total: int) -> int:
    """Return the pages of the KV pool: what was asked for, or what `mem_fraction_static` of the GPU leaves beside the weights.

    Args:
        free: bytes of the GPU that nobody has, once the weights are loaded.
        total: bytes of the GPU.

    Raises:
        StartupError: it would be none, or more than there is.
    """
    page_bytes = bytes_per_token * config.page_size
    num_pages = asked_pages(config)
    if num_pages is not None:
        if num_pages * page_bytes > free:
            raise StartupError(
                f"max_total_tokens is {config.max_total_tokens}, which takes {num_pages * page_bytes >> 20:,} MiB; "
                f"the GPU has {free >> 20:,} MiB free.",
                hint="leave --max-total-tokens out",
            )
        return num_pages
    fraction = DEFAULT_MEM_FRACTION if config.mem_fraction_static is None else config.mem_fraction_static
    # what is left out of the fraction stays free for activations and captured graphs
    num_pages = int(free - (1 - fraction) * total) // page_bytes
    if num_pages < 1:
        raise StartupError(
            f"mem_fraction_static is {fraction:g} of {total >> 20:,} MiB; with {free >> 20:,} MiB free beside the weights, "
            "that leaves nothing for KV.",
            hint="raise --mem-fraction-static, or serve a smaller model",
        )
    return num_pages


def paged_attention(model: ModelConfig, capabilities: Capabilities, device: torch.device) -> PagedAttention | None:
    """Return the backend that reads pages in place; None, with a line in the log, where its kernel cannot run."""
    try:
        from millstream.execution.torch.paged_kernel import KernelError, attend
    except ImportError as error:
        _say_it_is_slow(error)
        return None
    try:  # Triton comes with torch for CUDA, and compiles its launchers with the machine's C compiler
        try_kernel(attend, device)
    except (KernelError, RuntimeError, OSError, subprocess.CalledProcessError) as error:
        _say_it_is_slow(error)
        return None
    return PagedAttention(
        model,
        kernel=attend,
        page_size=capabilities.page_size,
        programs=PROGRAMS * int(torch.cuda.get_device_properties(device).multi_processor_count),
        context_length=capabilities.context_length,
        device=device,
    )


def capture_decodes(
    decoder: Decoder,
    store: KVStore,
    attention: PagedAttention,
    capabilities: Capabilities,
    *,
    max_rows: int,
    device: torch.device,
) -> DecodeGraphs:
    """Capture steps of up to `max_rows` decodes. The store has one page more than the capabilities say: the scratch page."""
    pages_a_row = -(-capabilities.context_length // capabilities.page_size)
    buffers = DecodeBuffers(
        max_rows=max_rows,
        max_pages=min(pages_a_row, capabilities.num_pages),
        page_size=capabilities.page_size,
        scratch_page=capabilities.num_pages,
        device=device,
    )
    with torch.inference_mode():
        return DecodeGraphs(
            sizes=graph_sizes(max_rows),
            buffers=buffers,
            compute=partial(decode_step, decoder, store, attention),
            capture=GraphCapture(device),
        )


def warm_up(executor: TorchExecutor, *, tokens: int, page: int) -> None:
    """Run chunks on a page that nobody has, so that no request waits for kernels to be compiled."""
    for count in sorted({min(2, tokens), tokens}):
        pages = [page] * -(-count // executor.capabilities.page_size)
        row = ForwardRow("", [0] * count, count, 0, count, pages, SamplingParams(temperature=0.0), 0, True)
        executor.forward(ForwardBatch([row]))


class GraphCapture:
    """A `Capture` as CUDA graphs, which share one pool of memory: they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        """Run once for real, so that kernels are compiled and workspaces there; then record."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            compute()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()

        def replay() -> Judged:
            graph.replay()
            return result

        return replay


def _say_it_is_slow(reason: Exception) -> None:
    log.warning("steps are slower than they could be: the paged attention kernel cannot run, because %s", reason)


def try_kernel(kernel: PagedKernel, device: torch.device) -> None:
    """Attend for one query over one key, which gives its value back.

    Raises:
        RuntimeError: it gives something else.
    """
    pages = torch.randn(1, 1, 2, 1, 16, device=device, dtype=torch.bfloat16)
    numbers = torch.tensor([[0], [1]], device=device)
    out = torch.empty(1, 1, 16, device=device, dtype=torch.bfloat16)
    rows = PagedRows(numbers[:1].int(), numbers[1], numbers[0])
    kernel(out, torch.ones_like(out), pages, rows, Launch(numbers[0], numbers[0], MIN_LANES, 1), window=None, scale=1.0)
    if not torch.equal(out[0], pages[0, 0, 1]):
        raise RuntimeError("it gives wrong results here")
