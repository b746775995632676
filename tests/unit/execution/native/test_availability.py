"""Why there is no native executor here: said as it is, for somebody will act on it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from millstream.execution.native.availability import find_native

MODULE = "millstream.execution.native._native"


def test_a_module_that_is_not_there_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    found = find_native()
    assert isinstance(found, str)
    assert "was not built" in found


def test_a_module_of_another_version_is_not_used(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(native, "INTERFACE")
    found = find_native()
    assert isinstance(found, str)
    assert "another version" in found


def test_a_module_that_cannot_be_loaded_is_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "_native.so"
    broken.write_bytes(b"built for another machine")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
            if name != MODULE:
                return None
            return importlib.util.spec_from_file_location(name, broken, loader=ExtensionFileLoader(name, str(broken)))

    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    found = find_native()
    assert isinstance(found, str)
    assert "cannot be loaded" in found
    assert str(broken) in found
