"""Which executor `auto` takes, and what it says where that is not the native one."""

from __future__ import annotations

import pytest

from millstream.checkpoint.locate import ModelSource, resolve_model
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution import registry
from millstream.execution.native import availability, executor
from millstream.execution.registry import choose_executor, describe_executor


@pytest.fixture
def source() -> ModelSource:
    return resolve_model("embedded")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_gpu_driver", lambda: False)


def needs_native() -> None:
    if isinstance(found := availability.find_native(), str):
        pytest.skip(f"there is no native executor here: {found}")


def test_auto_is_native_where_it_can_run(source: ModelSource) -> None:
    needs_native()
    assert choose_executor(ServerConfig(), source) == ("native", None)


def test_auto_is_torch_where_torch_has_a_gpu(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_gpu_driver", lambda: True)
    monkeypatch.setattr("millstream.execution.torch.build.can_use_gpu", lambda: True)
    assert choose_executor(ServerConfig(), source) == ("torch", None)


def test_a_driver_is_of_no_use_to_a_torch_that_cannot_use_it(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_native()
    monkeypatch.setattr(registry, "has_gpu_driver", lambda: True)
    monkeypatch.setattr("millstream.execution.torch.build.can_use_gpu", lambda: False)
    assert choose_executor(ServerConfig(), source) == ("native", None)


def test_auto_says_why_it_is_torch(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "find_native", lambda: "it was not built")
    assert choose_executor(ServerConfig(), source) == ("torch", "it was not built")
    assert describe_executor(ServerConfig(), source).endswith("; not native, because it was not built")


def test_pages_that_the_kernels_cannot_take_are_a_reason(source: ModelSource) -> None:
    needs_native()
    name, reason = choose_executor(ServerConfig(page_size=8), source)
    assert name == "torch"
    assert "page_size is 8" in str(reason)


def test_who_names_the_native_one_is_told_why_it_cannot_run(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "find_native", lambda: "it was not built")
    with pytest.raises(StartupError, match="the native executor cannot run: it was not built"):
        describe_executor(ServerConfig(executor="native"), source)


@pytest.mark.parametrize("name", ["native", "torch"])
def test_who_names_an_executor_gets_that_one(source: ModelSource, name: str) -> None:
    assert choose_executor(ServerConfig(executor=name), source) == (name, None)  # type: ignore[arg-type]
