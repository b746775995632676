"""The extension module, and the embedded model on it, loaded once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from millstream.checkpoint.locate import resolve_model
from millstream.execution.native.availability import find_native
from millstream.execution.native.executor import NativeExecutor
from tests.unit.execution.native.steps import load_native


@pytest.fixture(scope="session")
def native() -> ModuleType:
    found = find_native()
    if isinstance(found, str):
        pytest.skip(f"there is no native executor here: {found}")
    return found


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="session")
def native_embedded(native: ModuleType, cache_dir: Path) -> Iterator[NativeExecutor]:
    executor = load_native(resolve_model("embedded"), cache_dir=str(cache_dir), threads=2, max_total_tokens=8192)
    yield executor
    executor.close()


@pytest.fixture(scope="session", params=["avx512", "avx2"])
def isa(request: pytest.FixtureRequest, native: ModuleType) -> str:
    """Each instruction set in turn."""
    name: str = request.param
    if name == "avx512" and native.instruction_set() != "avx512":
        pytest.skip("this CPU has no AVX-512 VNNI")
    return name


@pytest.fixture(scope="session")
def both_isas(native: ModuleType) -> tuple[str, str]:
    if native.instruction_set() != "avx512":
        pytest.skip("this CPU has no AVX-512 VNNI to compare AVX2 with")
    return "avx512", "avx2"
