"""Loading: a model whose numbers are damaged is refused, and not served."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import open_checkpoint
from millstream.errors import StartupError
from millstream.execution.native.loader import load_native_model


def test_a_norm_that_is_not_finite_is_refused_by_name(
    native: ModuleType, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = resolve_model("embedded")
    checkpoint = open_checkpoint(source)
    read = checkpoint.read

    def damaged(name: str, out: NDArray[np.float32]) -> None:
        read(name, out)
        if name == "3.ffn_norm":
            out[7] = np.inf

    monkeypatch.setattr(checkpoint, "read", damaged)
    with pytest.raises(StartupError, match=r"`3\.ffn_norm` .* not finite"):
        load_native_model(checkpoint, source, cache_dir=cache_dir, kv_type="fp16", num_pages=1, page_size=16, threads=1)
