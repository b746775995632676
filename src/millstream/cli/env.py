"""`millstream env`: what a report of a problem needs to say of where it happened.

Nothing secret is in it: no variables of the environment, no arguments.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

from platformdirs import user_cache_path

from millstream import __version__
from millstream.cli import machine

LIBRARIES = (
    "torch", "tokenizers", "fastokens", "llguidance", "numpy", "msgspec", "jinja2", "uvicorn", "uvloop", "httptools",
    "prometheus-client", "cyclopts", "rich", "opentelemetry-sdk", "triton",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """The report as JSON has it. Imports none of the libraries: it is quick, and a broken one does no harm."""
    isa, why_not = machine.native_executor()
    return {
        "millstream": __version__,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "path": sys.executable,
        },
        "system": {"name": platform.system(), "release": platform.release(), "libc": " ".join(platform.libc_ver())},
        "processor": machine.processor(),
        "memory": machine.memory(),
        "gpu": machine.gpu(),
        "executors": {
            "native": {"instruction_set": isa, "why_not": why_not},
            "torch": {"version": _version("torch")},
            "scripted": {},
        },
        "limits": {"open_files": machine.open_files()},
        "cache_directory": str(user_cache_path("millstream")),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def environment_text(found: dict[str, Any]) -> str:
    """The report for people."""
    python, system, cpu, memory = found["python"], found["system"], found["processor"], found["memory"]
    native = found["executors"]["native"]
    cgroup = "" if cpu["cgroup_cores"] is None else f", cgroup: {cpu['cgroup_cores']:g}"
    facts = {
        "millstream": found["millstream"],
        "python": f"{python['implementation']} {python['version']}, {python['path']}",
        "system": f"{system['name']} {system['release']}, {system['libc']}",
        "processor": f"{cpu['name']} ({cpu['architecture']}), {cpu['usable_cores']} of {cpu['cores']} cores{cgroup}",
        "features": ", ".join(cpu["features"]) or "none that kernels use",
        "memory": ", ".join(f"{name.removesuffix('_bytes')} {_gib(value)}" for name, value in memory.items()),
        "gpu": found["gpu"] or "no NVIDIA driver",
        "native": f"{native['instruction_set']} kernels" if native["why_not"] is None else f"not here: {native['why_not']}",
        "torch": found["executors"]["torch"]["version"] or "not installed",
        "open files": "no limit" if found["limits"]["open_files"] is None else f"{found['limits']['open_files']:,}",
        "cache": found["cache_directory"],
        "libraries": ", ".join(f"{name} {version}" for name, version in found["libraries"].items() if version),
    }
    width = max(map(len, facts))
    return "".join(f"{name.ljust(width)}  {fact}\n" for name, fact in facts.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _gib(value: int | None) -> str:
    return "not limited" if value is None else f"{value / (1 << 30):,.1f} GiB"
