"""attend: attention over paged KV as Triton kernels. The only module that needs triton, which comes with torch for CUDA.

Imported where a GPU is there, and by tests that run it in Triton's interpreter. What a launch is, and who reads which keys, is
described in `paged_attention`. The softmax is computed as the keys go by (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018; Dao et al., FlashAttention, 2022); shares of the keys are combined after (Flash-Decoding, 2023).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from millstream.execution.torch.paged_attention import Launch, PagedRows

KernelError = TritonError  # it cannot be compiled, or does not fit the device

# what differs from step to step; a kernel compiled anew for a lucky value would stand still for seconds
NUMBERS = ("splits", "table_stride")
TABLES = ("tables", "lengths", "offsets", "block_rows", "block_starts")


def attend(
    out: Tensor, queries: Tensor, pages: Tensor, rows: PagedRows, launch: Launch, *, window: int | None, scale: float
) -> None:
    """See `PagedKernel`."""
    _, page_size, _, kv_heads, head_dim = pages.shape
    heads = queries.shape[1]
    blocks, splits, lanes = len(launch.rows), launch.splits, launch.lanes
    width = triton.next_power_of_2(head_dim)
    shape = {
        "HEADS_A_KEY": heads // kv_heads,
        "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "WIDTH": max(width, 16),
        "LANES": lanes,
        "IS_SPLIT": splits > 1,
    }
    # of a split, float32: sums of weighted values; the largest score of each lane, and the sum of its weights
    count = blocks * kv_heads * splits * lanes if splits > 1 else 1
    sums = torch.empty((count, head_dim), device=out.device, dtype=torch.float32)
    peaks, totals = torch.empty((2, count), device=out.device, dtype=torch.float32)
    _attend_kernel[(blocks, kv_heads, splits)](
        out, queries, pages, sums, peaks, totals,
        rows.tables, rows.lengths, rows.offsets, launch.rows, launch.starts,
        scale * math.log2(math.e), queries.stride(0), rows.tables.stride(0), splits,
        **shape, PAGE_SIZE=page_size, WINDOW=window or 0, KEYS=64 if width <= 128 else 32,
        num_warps=4, num_stages=2 if width > 128 or lanes > 64 else 3,
    )  # fmt: skip
    if splits > 1:
        _combine_kernel[(blocks, kv_heads)](
            out, sums, peaks, totals, rows.lengths, rows.offsets, launch.rows, launch.starts, splits, **shape, num_warps=4
        )


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=TABLES)
def _attend_kernel(
    out, queries, pages, sums, peaks, totals,
    tables, lengths, offsets, block_rows, block_starts,
    scale, query_stride, table_stride, splits,
    HEADS_A_KEY: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
    IS_SPLIT: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One block of queries of one key head over one share of its keys. `scale` is in powers of two."""
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(block_rows + block).to(tl.int32)
    start = tl.load(block_starts + block).to(tl.int32)
    length = tl.load(lengths + row).to(tl.int32)
    lane = tl.arange(0, LANES)
    position = start + lane // HEADS_A_KEY
    is_query = (lane < LANES // HEADS_A_KEY * HEADS_A_KEY) & (position < length)
    token = tl.load(offsets + row) + position  # int64, as are all places in large tensors
    head = kv_head * HEADS_A_KEY + lane % HEADS_A_KEY
    dim = tl.arange(0, WIDTH)
    is_dim = dim < HEAD_DIM
    query = tl.load(
        queries + (token * query_stride + head * HEAD_DIM)[:, None] + dim[None, :],
        mask=is_query[:, None] & is_dim[None, :],
        other=0.0,
    )

    last = tl.minimum(length, start + LANES // HEADS_A_KEY)  # one past the last key that any query sees
    first = start * 0
    if WINDOW > 0:
        first = tl.maximum(start - WINDOW + 1, 0) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(last - first, KEYS), splits) * KEYS
    begin = first + split * share
    end = tl.minimum(begin + share, last)

    peak = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    summed = tl.zeros([LANES, WIDTH], tl.float32)
    for at in range(begin, end, KEYS):
        key = at + tl.arange(0, KEYS)
        is_key = key < end
        page = tl.load(tables + row.to(tl.int64) * table_stride + key // PAGE_SIZE, mask=is_key, other=0).to(tl.int64)
        slot = (page * PAGE_SIZE + key % PAGE_SIZE) * (2 * KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        keys = tl.load(pages + slot[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(query, keys) * scale
        is_seen = is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # a lane that has seen no key yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(
            pages + KV_HEADS * HEAD_DIM + slot[:, None] + dim[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0
        )
        summed = summed * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        peak = new_peak

    if IS_SPLIT:
        place = ((block * KV_HEADS + kv_head) * splits + split) * LANES + lane
        tl.store(peaks + place, peak, mask=is_query)
        tl.store(totals + place, total, mask=is_query)
        tl.store(sums + place[:, None] * HEAD_DIM + dim[None, :], summed, mask=is_query[:, None] & is_dim[None, :])
    else:
        tl.store(
            out + (token * (KV_HEADS * HEADS_A_KEY * HEAD_DIM) + head * HEAD_DIM)[:, None] + dim[None, :],
            (summed / total[:, None]).to(out.dtype.element_ty),
            mask=is_query[:, None] & is_dim[None, :],
        )


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=TABLES)
def _combine_kernel(
    out, sums, peaks, totals, lengths, offsets, block_rows, block_starts, splits,
    HEADS_A_KEY: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """All shares of one block and key head. Some may have seen no key; one has, for every query sees itself."""
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(block_rows + block).to(tl.int32)
    lane = tl.arange(0, LANES)
    position = tl.load(block_starts + block).to(tl.int32) + lane // HEADS_A_KEY
    is_query = (lane < LANES // HEADS_A_KEY * HEADS_A_KEY) & (position < tl.load(lengths + row).to(tl.int32))
    token = tl.load(offsets + row) + position
    head = kv_head * HEADS_A_KEY + lane % HEADS_A_KEY
    dim = tl.arange(0, WIDTH)
    mask = is_query[:, None] & (dim < HEAD_DIM)[None, :]

    peak = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    summed = tl.zeros([LANES, WIDTH], tl.float32)
    for split in range(splits):
        place = ((block * KV_HEADS + kv_head) * splits + split) * LANES + lane
        own_peak = tl.load(peaks + place, mask=is_query, other=float("-inf"))
        new_peak = tl.maximum(peak, own_peak)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink = tl.exp2(peak - base)
        weight = tl.exp2(own_peak - base)
        total = total * shrink + tl.load(totals + place, mask=is_query, other=0.0) * weight
        own = tl.load(sums + place[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0)
        summed = summed * shrink[:, None] + own * weight[:, None]
        peak = new_peak
    tl.store(
        out + (token * (KV_HEADS * HEADS_A_KEY * HEAD_DIM) + head * HEAD_DIM)[:, None] + dim[None, :],
        (summed / total[:, None]).to(out.dtype.element_ty),
        mask=mask,
    )
