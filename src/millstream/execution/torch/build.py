"""load_torch_executor: the torch executor for a model, on a GPU where there is one. Called once, by the registry.

Float32 on CPU, bfloat16 on a GPU.
"""

from __future__ import annotations

import logging

import torch

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import Checkpoint, open_checkpoint
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.machine import capabilities_of, context_limit, machine_memory, num_cores, pool_pages
from millstream.execution.plan import ExecutorPlan, count_weights
from millstream.execution.torch import gpu
from millstream.execution.torch.decoder import Decoder
from millstream.execution.torch.gather_attention import GatherAttention
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.loader import load_weights
from millstream.execution.torch.runner import TorchExecutor

log = logging.getLogger(__name__)


def load_torch_executor(config: ServerConfig, source: ModelSource, *, use_gpu: bool | None = None) -> TorchExecutor:
    """Load the model of `source` and make room for its KV.

    Args:
        use_gpu: whether to compute on a GPU. None: where there is one.

    Raises:
        StartupError: the model is broken or not supported, or the options do not fit it.
    """
    is_gpu = can_use_gpu() if use_gpu is None else use_gpu
    own_kv = _kv_dtype(config, is_gpu)
    checkpoint = open_checkpoint(source)
    context_length = context_limit(config, checkpoint.config)
    try:
        if is_gpu:
            executor = load_on_gpu(config, checkpoint, context_length, torch.device("cuda", torch.cuda.current_device()))
        else:
            executor = _on_cpu(config, checkpoint, context_length)
    except torch.OutOfMemoryError as error:
        raise StartupError(
            "the GPU has not enough memory for the model, its KV pool and the steps that are captured.",
            hint="lower --mem-fraction-static or --max-running-requests",
        ) from error
    log.info(
        "loaded %s (%d layers, %s on %s, %d KV pages of %d tokens)",
        source.names[0], checkpoint.config.num_layers, own_kv, _device_name(config, is_gpu), executor.capabilities.num_pages,
        config.page_size,
    )  # fmt: skip
    return executor


def describe_torch(config: ServerConfig) -> str:
    """What would compute, in a few words."""
    return f"torch {torch.__version__} on {_device_name(config, can_use_gpu())}"


def plan_torch(config: ServerConfig, source: ModelSource) -> ExecutorPlan:
    """What `load_torch_executor` would take. Reads no weights.

    Raises:
        StartupError: as there.
    """
    is_gpu = can_use_gpu()
    kv_dtype = _kv_dtype(config, is_gpu)
    model = open_checkpoint(source).config
    context_length, dtype = context_limit(config, model), torch.bfloat16 if is_gpu else torch.float32
    weights, bytes_per_token = count_weights(model) * dtype.itemsize, _bytes_per_token(model, dtype)
    if is_gpu:
        free, total = torch.cuda.mem_get_info()
        num_pages = gpu.pool_pages(config, bytes_per_token=bytes_per_token, free=free - weights, total=total)
    else:
        if model.tie_embeddings:  # held twice: see `load_weights`
            weights += model.vocab_size * model.hidden_size * dtype.itemsize
        num_pages = pool_pages(config, context_length=context_length, bytes_per_token=bytes_per_token, memory=machine_memory())
    return ExecutorPlan(
        name="torch",
        what=describe_torch(config),
        threads=config.threads or num_cores(),
        context_length=context_length,
        num_pages=num_pages,
        page_size=config.page_size,
        kv_dtype=kv_dtype,
        kv_bytes_per_token=bytes_per_token,
        weight_bytes=weights,
        on_gpu=is_gpu,
    )


def _kv_dtype(config: ServerConfig, is_gpu: bool) -> str:
    own = "bf16" if is_gpu else "fp32"
    if config.kv_cache_dtype not in ("auto", own):
        raise StartupError(
            f"kv_cache_dtype is {config.kv_cache_dtype}; the torch executor keeps keys and values in {own} here.",
            hint="leave --kv-cache-dtype out, or pass --executor native",
        )
    return own


def can_use_gpu() -> bool:
    """Whether there is a GPU and this build of torch computes on it."""
    return torch.cuda.is_available()


def _on_cpu(config: ServerConfig, checkpoint: Checkpoint, context_length: int) -> TorchExecutor:
    torch.set_num_threads(config.threads or num_cores())
    model, device, dtype = checkpoint.config, torch.device("cpu"), torch.float32
    num_pages = pool_pages(
        config, context_length=context_length, bytes_per_token=_bytes_per_token(model, dtype), memory=machine_memory()
    )
    return TorchExecutor(
        decoder=Decoder(model, load_weights(checkpoint, device, dtype)),
        store=KVStore(model, num_pages=num_pages, page_size=config.page_size, device=device, dtype=dtype),
        capabilities=capabilities_of(config, model, context_length=context_length, num_pages=num_pages, executor="torch"),
        attention=GatherAttention(page_size=config.page_size, device=device, dtype=dtype),
        device=device,
    )


def load_on_gpu(config: ServerConfig, checkpoint: Checkpoint, context_length: int, device: torch.device) -> TorchExecutor:
    """Load a model that was opened already onto a GPU: weights, then the KV pool, then captured steps.

    Raises:
        StartupError: the options leave no room for KV.
    """
    model, dtype = checkpoint.config, torch.bfloat16
    decoder = Decoder(model, load_weights(checkpoint, device, dtype))
    torch.cuda.empty_cache()  # so that what loading needed for a while counts as free
    free, total = torch.cuda.mem_get_info(device)
    num_pages = gpu.pool_pages(config, bytes_per_token=_bytes_per_token(model, dtype), free=free, total=total)
    # one page more than the scheduler knows of: the rows that fill a captured step up compute there
    store = KVStore(model, num_pages=num_pages + 1, page_size=config.page_size, device=device, dtype=dtype)
    capabilities = capabilities_of(config, model, context_length=context_length, num_pages=num_pages, executor="torch")
    attention = gpu.paged_attention(model, capabilities, device)
    graphs = None
    if attention is not None:
        graphs = gpu.capture_decodes(
            decoder, store, attention, capabilities, max_rows=config.max_running_requests, device=device
        )
    executor = TorchExecutor(
        decoder=decoder,
        store=store,
        capabilities=capabilities,
        attention=attention or GatherAttention(page_size=config.page_size, device=device, dtype=dtype),
        device=device,
        graphs=graphs,
    )
    gpu.warm_up(executor, tokens=min(config.chunked_prefill_size, context_length), page=num_pages)
    return executor


def _bytes_per_token(model: ModelConfig, dtype: torch.dtype) -> int:
    return model.num_layers * 2 * model.num_kv_heads * model.head_dim * dtype.itemsize


def _device_name(config: ServerConfig, is_gpu: bool) -> str:
    if is_gpu:
        return torch.cuda.get_device_name()
    return f"CPU ({config.threads or num_cores()} threads)"
