"""upload and fetch: between numpy and a device, without waiting where the device allows it. Called by all of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array on `device`. On a GPU the copy is queued behind the work before it, and nobody waits."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    # only from pinned memory does a copy run on its own; torch keeps the pinned block until the copy has been made
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> NDArray[Any]:
    """Return the tensor's values, after all work before it. On a CPU they are the tensor's own memory."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return np.asarray(host.numpy())
