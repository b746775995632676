"""What this machine and this process may use: processor, memory, limits, cgroup.

Reads files and asks the system, changes nothing. Where a system does not say something, it is None.
"""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import Any

from millstream.execution.machine import has_gpu_driver, machine_memory, num_cores
from millstream.execution.native.availability import find_native

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
CGROUP = Path("/sys/fs/cgroup")


def processor() -> dict[str, Any]:
    """Its name, cores (of the machine, and for this process), and of the features that kernels use those it has."""
    info = _fields(Path("/proc/cpuinfo"))
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "name": info.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": num_cores(),
        "cgroup_cores": cgroup_cores(),
        "features": [name for name in FEATURES if name in flags],
    }


def memory() -> dict[str, int | None]:
    """Bytes there are, that are free to take now, and that this process's cgroup allows."""
    fields = _fields(Path("/proc/meminfo"))
    available = fields.get("MemAvailable", "").removesuffix(" kB")
    return {
        "total_bytes": machine_memory(),
        "available_bytes": int(available) * 1024 if available.isdecimal() else None,
        "cgroup_bytes": _number(CGROUP / "memory.max"),
    }


def usable_memory() -> int:
    """Bytes that a server started now could take before the system runs out."""
    return min(value for value in memory().values() if value is not None)


def open_files() -> int | None:
    """Files and connections a process may have open: the hard limit, which the server raises its own to; None: any number."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def native_executor() -> tuple[str | None, str | None]:
    """The instruction set our CPU kernels would use here, or None and why not."""
    found = find_native()
    return (None, found) if isinstance(found, str) else (found.instruction_set(), None)


def gpu() -> str | None:
    """The NVIDIA driver, if there is one."""
    if not has_gpu_driver():
        return None
    version = Path("/proc/driver/nvidia/version")
    return version.read_text(encoding="utf-8").splitlines()[0] if version.exists() else "a driver of unknown version"


def cgroup_cores() -> float | None:
    """Processor time a second that this process's cgroup allows; None: no limit."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _fields(path: Path) -> dict[str, str]:
    """`name: value` lines, of each name the first."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
