"""Which chat templates a model goes by: its own, one of the package's, or the operator's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from millstream.checkpoint.locate import ModelSource
from millstream.config import ServerConfig
from millstream.errors import RequestError, StartupError
from millstream.text.chat_prompt import ChatPrompts
from millstream.text.chat_template import ChatTemplate
from millstream.text.gguf_tokenizer import read_gguf_tokenizer
from millstream.text.huggingface_tokenizer import read_huggingface_tokenizer
from millstream.text.template_sources import BUILTIN, builtin_template, choose_templates
from millstream.text.tokenizer import Tokenizer, load_configured_tokenizer, load_scripted_tokenizer
from tests.support.published_templates import published_templates
from tests.support.transformers_chat import SPECIAL_TOKENS
from tests.unit.text.test_gguf_tokenizer import byte_level_metadata
from tests.unit.text.test_huggingface_tokenizer import write_model

OWN = {"default": "{{ 'own' }}", "tool_use": "{{ 'tools' }}", "chatml": "{{ 'the own chatml' }}"}


def test_without_the_option_the_models_own_are_used() -> None:
    assert choose_templates(None, OWN) == OWN
    assert choose_templates(None, {}) == {}


def test_one_of_the_models_own_is_chosen_by_its_name_before_all_others() -> None:
    assert choose_templates("tool_use", OWN) == {"default": "{{ 'tools' }}"}
    assert choose_templates("chatml", OWN) == {"default": "{{ 'the own chatml' }}"}


@pytest.mark.parametrize("name", BUILTIN)
def test_one_that_comes_along_is_chosen_by_its_name(name: str) -> None:
    assert choose_templates(name, {"default": "own"}) == {"default": builtin_template(name)}


def test_a_file_is_read(tmp_path: Path) -> None:
    jinja, other = tmp_path / "a.jinja", tmp_path / "b.json"
    jinja.write_text("{{ 'é' }}", encoding="utf-8")
    other.write_text(json.dumps({"chat_template": "{{ 1 }}"}), encoding="utf-8")
    assert choose_templates(str(jinja), OWN) == {"default": "{{ 'é' }}"}
    assert choose_templates(str(other), OWN) == {"default": "{{ 1 }}"}


def test_what_is_neither_a_name_nor_a_file_stops_the_start_and_says_what_is() -> None:
    with pytest.raises(StartupError, match="`vicuna-9` cannot be read") as caught:
        choose_templates("vicuna-9", OWN)
    assert all(f"`{name}`" in str(caught.value.hint) for name in (*BUILTIN, "tool_use"))


@pytest.mark.parametrize(("name", "content"), [("a.jinja", b"\xff"), ("a.json", b"{"), ("a.json", b"{}"), ("a.json", b"[1]")])
def test_a_file_that_holds_no_template_stops_the_start(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartupError, match="cannot be read"):
        choose_templates(str(tmp_path / name), {})


def test_the_option_reaches_the_tokenizer_of_every_process() -> None:
    tokenizer = load_configured_tokenizer(ServerConfig(executor="scripted", chat_template="llama-3"), None)
    assert tokenizer.chat_templates == {"default": builtin_template("llama-3")}


FILES: list[dict[str, Any]] = [
    {"field": "a"},
    {"field": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, {"name": "rag", "template": "c"}]},
    {"field": "old", "chat_template.jinja": "new"},
    {"field": "old", "additional_chat_templates/tool_use.jinja": "b", "chat_template.jinja": "new"},
    {"chat_template.json": json.dumps({"chat_template": "j"})},
]


@pytest.mark.parametrize("files", FILES, ids=["text", "list", "file", "files", "json"])
def test_a_directory_has_the_templates_that_transformers_finds_in_it(tmp_path: Path, files: dict[str, Any]) -> None:
    fields = {"chat_template": files["field"]} if "field" in files else {}
    write_model(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **fields})
    for name, text in files.items():
        if name != "field":
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path).chat_template
    if "chat_template.json" in files:  # which transformers reads for models with images only
        theirs = "j"
    ours = read_huggingface_tokenizer(tmp_path).chat_templates
    assert ours == ({"default": theirs} if isinstance(theirs, str) else theirs)


def test_a_gguf_file_has_a_template_for_any_conversation_and_others_by_name() -> None:
    metadata = byte_level_metadata() | {
        "tokenizer.chat_template": "a",
        "tokenizer.chat_template.tool_use": "b",
        "tokenizer.chat_templates": ["tool_use"],
    }
    assert read_gguf_tokenizer(metadata).chat_templates == {"default": "a", "tool_use": "b"}
    assert read_gguf_tokenizer(byte_level_metadata()).chat_templates == {}


def test_a_conversation_with_tools_goes_by_the_template_for_tools() -> None:
    prompts = ChatPrompts(load_scripted_tokenizer(), OWN)
    assert prompts.render(prompts.template_for(has_tools=False), [{"role": "user", "content": "a"}]) == "own"
    assert prompts.render(prompts.template_for(has_tools=True), [{"role": "user", "content": "a"}]) == "tools"
    single = ChatPrompts(load_scripted_tokenizer(), {"default": OWN["default"], "rag": "{{ 1 }}"})
    assert single.template_for(has_tools=True) is single.template_for(has_tools=False)


def test_a_broken_template_for_tools_stops_the_start_too() -> None:
    with pytest.raises(StartupError, match="line 2"):
        ChatPrompts(load_scripted_tokenizer(), {"default": "a", "tool_use": "\n{% for %}"})


# a published template that writes the same for these conversations
SAME = {
    "chatml": "llava:34b",
    "gemma": "gemma3:270m",
    "llama-2": "llama2:7b",
    "llama-3": "llama3:8b",
    "mistral": "llava:7b",
    "phi-3": "phi3:3.8b",
    "zephyr": "tinyllama:1.1b",
}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <&> 天气"},
    {"role": "assistant", "content": "Hello!\nYes."},
    {"role": "user", "content": "Bye"},
]


@pytest.mark.parametrize("name", BUILTIN)
def test_one_that_comes_along_writes_what_the_models_own_write(name: str) -> None:
    published = ChatTemplate(published_templates()[SAME[name]], SPECIAL_TOKENS)
    ours = ChatTemplate(builtin_template(name), SPECIAL_TOKENS)
    for start, end in ((0, 2), (0, 4), (1, 2), (1, 4)):
        if name == "mistral" and start == 0:
            continue  # that one refuses system messages
        for more in ({}, {"add_generation_prompt": False}):
            expected = published.render(TURNS[start:end], **more)
            if name == "phi-3":
                expected = expected.removesuffix("</s>")  # which it puts where no answer follows
            assert ours.render(TURNS[start:end], **more) == expected
    assert ours.closing_text.strip() == published.closing_text.removesuffix("</s>" if name == "phi-3" else "").strip()


@pytest.mark.parametrize("name", ["gemma", "llama-2", "mistral"])
def test_those_that_need_alternating_turns_say_so(name: str) -> None:
    template = ChatTemplate(builtin_template(name), SPECIAL_TOKENS)
    with pytest.raises(RequestError, match="must alternate"):
        template.render([TURNS[1], TURNS[3]])
    assert "Be brief.\n" in template.render(TURNS[:2])


def test_a_huggingface_directory_can_be_served_by_another_template(tmp_path: Path) -> None:
    source: ModelSource = write_model(tmp_path, tokenizer_config={"chat_template": "own", "bos_token": "<s>"})
    tokenizer = load_configured_tokenizer(ServerConfig(chat_template="mistral"), source)
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.chat_template == builtin_template("mistral")
