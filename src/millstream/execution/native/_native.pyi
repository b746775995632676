"""The extension module as Python sees it; engine/bind_*.cpp say more. Functions that only tests call are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

INTERFACE: int  # see availability.py

def instruction_set() -> str | None:
    """Return the best kernels that this machine runs, `avx512` or `avx2`, or None."""

def measure_ceilings(threads: int) -> dict[str, float]:
    """Return what this machine does at most, now: `read_gb_s`, `int8_gops`, `fp32_gflops`."""

def packed_bytes(format: str, rows: int, inputs: int) -> int:
    """Return the bytes of a packed matrix."""

def pack_gguf(
    type: str,
    stored: NDArray[np.uint8],
    rows: int,
    inputs: int,
    order: NDArray[np.int32] | None,
    block_begin: int,
    block_end: int,
    out: NDArray[np.uint8],
) -> None:
    """Pack blocks of 16 rows of a matrix of GGUF blocks."""

def pack_floats(values: NDArray[np.float32], block_begin: int, block_end: int, out: NDArray[np.uint8]) -> None:
    """Pack blocks of 16 rows of floats in 8 bits.

    Raises:
        ValueError: a weight is not finite.
    """

class Model:
    """A decoder with its KV. Called from one thread."""

    isa: str
    threads: int

    def __init__(
        self,
        config: Mapping[str, object],
        matrices: Mapping[str, tuple[str, int, int, NDArray[np.uint8]]],
        vectors: Mapping[str, NDArray[np.float32]],
        tied: bool,
        kv_type: int,
        num_pages: int,
        page_size: int,
        threads: int,
        isa: str,
    ) -> None: ...
    def forward(
        self,
        tokens: NDArray[np.int32],
        rows: Sequence[tuple[int, int, Sequence[int], int]],
        embedded: Mapping[int, NDArray[np.float32]] = ...,
        kept: Sequence[int] = ...,
    ) -> None:
        """Run a step: rows of (number of tokens, first position, pages, number of last positions that get logits).

        `embedded` has, by row, `[tokens, hidden]` in place of the embeddings of its first tokens; `kept` are rows whose last
        state is kept.
        """

    def kept_states(self) -> NDArray[np.float32]:
        """Return the last step's, `[kept, hidden]`, after the final norm: a view that the next step overwrites."""

    def logits(self) -> NDArray[np.float32]:
        """Return the last step's, `[outputs, padded vocab]`: a view that the next step overwrites."""

    def best(self) -> list[tuple[int, bool]]:
        """Return of each output the token with the largest logit, and whether all of its logits are finite."""

    def rows_not_finite(self) -> list[int]:
        """Return the rows whose last state is NaN or infinite."""

    def draw(self, rows: Sequence[tuple[int, float, int, float, float, int, int, NDArray[np.uint32] | None]]) -> list[int]:
        """Draw tokens: rows of (output, temperature, top_k, top_p, min_p, seed, index of the output token, mask).

        A mask is contiguous and has a bit for each id that may be drawn, the lowest first; None: all may. Returns -1 where none
        may be drawn.
        """

    def tell(
        self, questions: Sequence[tuple[int, Sequence[int], int, Sequence[int]]]
    ) -> list[tuple[list[float], list[list[int]], list[list[float]], list[list[float]]]]:
        """Return log probabilities of tokens behind outputs of the last step: the columns of a `Logprobs` for each question.

        Questions are (first output, token ids, top, other ids).
        """

    def copy_page(self, source: int, target: int) -> None: ...
    def heal_page(self, page: int) -> None:
        """Zero what is not finite in a page."""
