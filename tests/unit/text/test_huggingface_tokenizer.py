from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from millstream.checkpoint.locate import ModelSource
from millstream.errors import StartupError
from millstream.text.byte_table import BYTE_LEVEL_ALPHABET
from millstream.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.made_tokenizers import sentencepiece_tokenizer

TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


def write_model(directory: Path, **files: Any) -> ModelSource:
    """A byte-level tokenizer with `<s>` 256, `</s>` 257, `<|eot|>` 258, and the JSON files given by name."""
    encoder = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(BYTE_LEVEL_ALPHABET)}, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", "<|eot|>")])
    encoder.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 256)])
    encoder.enable_truncation(4)
    encoder.enable_padding(length=4)
    encoder.save(str(directory / "tokenizer.json"))
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return ModelSource("huggingface", directory, ("model",))


def load(directory: Path, **files: Any) -> Tokenizer:
    return load_tokenizer(write_model(directory, **files))


def test_a_directory_with_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"
    assert (tokenizer.eos_token_ids, tokenizer.chat_template, tokenizer.special_tokens) == (frozenset(), None, {})


def test_a_prompt_is_neither_cut_nor_padded(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert len(tokenizer.encode("x" * 100)) == 101
    assert tokenizer.encode("x", add_special_tokens=False) == [ord("x")]


CLOSED_BY_EOT = {"eos_token": "</s>", "chat_template": TEMPLATE.replace("]", "<|eot|>\n")}


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        pytest.param({"tokenizer_config": {"eos_token": "</s>"}}, {257}, id="tokenizer-config-text"),
        pytest.param({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, {257}, id="tokenizer-config-object"),
        pytest.param({"special_tokens_map": {"eos_token": "</s>"}}, {257}, id="special-tokens-map"),
        pytest.param({"config": {"eos_token_id": 5}}, {5}, id="config-number"),
        pytest.param({"config": {"eos_token_id": [5, 6]}}, {5, 6}, id="config-list"),
        pytest.param({"config": {"text_config": {"eos_token_id": 7}}}, {7}, id="config-of-the-text-part"),
        pytest.param({"config": {"eos_token_id": None}}, set(), id="config-null"),
        pytest.param({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [257]}}, {5, 257}, id="union"),
        pytest.param({"tokenizer_config": CLOSED_BY_EOT}, {257, 258}, id="end-of-turn"),
        pytest.param({"tokenizer_config": {"eos_token": "unheard of"}}, set(), id="eos-outside-the-vocabulary"),
    ],
)
def test_end_tokens_come_from_every_file_that_names_them(tmp_path: Path, files: dict[str, Any], ids: set[int]) -> None:
    assert load(tmp_path, **files).eos_token_ids == ids


@pytest.mark.parametrize(
    ("field", "template"),
    [
        pytest.param(TEMPLATE, TEMPLATE, id="text"),
        pytest.param([{"name": "rag", "template": "x"}, {"name": "default", "template": TEMPLATE}], TEMPLATE, id="named"),
        pytest.param([{"name": "rag", "template": "x"}], None, id="none-named-default"),
        pytest.param(None, None, id="none"),
    ],
)
def test_the_chat_template_is_found_in_the_tokenizer_config(tmp_path: Path, field: object, template: str | None) -> None:
    assert load(tmp_path, tokenizer_config={"chat_template": field}).chat_template == template


def test_a_template_file_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    assert load(tmp_path, tokenizer_config={"chat_template": "old"}).chat_template == TEMPLATE


def test_a_template_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(StartupError, match=r"chat_template\.jinja"):
        load(tmp_path)


def test_special_tokens_are_named_for_the_template(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "add_bos_token": True}
    assert load(tmp_path, tokenizer_config=config).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    source = write_model(tmp_path)
    (tmp_path / name).write_text("{", encoding="utf-8")
    with pytest.raises(StartupError, match=name):
        load_tokenizer(source)


def test_a_file_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"config\.json"):
        load(tmp_path, config=[])


def test_a_directory_without_tokenizer_json_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as caught:
        load_tokenizer(ModelSource("huggingface", tmp_path, ("model",)))
    assert "save_pretrained" in (caught.value.hint or "")


def test_a_broken_chat_template_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="chat template"):
        load(tmp_path, tokenizer_config={"chat_template": "{% for %}"})


def test_a_sentencepiece_tokenizer_decodes_the_same_from_either_format(tmp_path: Path) -> None:
    from_gguf = sentencepiece_tokenizer()
    from_gguf._encoder.save(str(tmp_path / "tokenizer.json"))
    from_directory = load_tokenizer(ModelSource("huggingface", tmp_path, ("model",)))
    for text in ("hello world", "</s>hello é", "a😀 \n"):
        ids = from_gguf.encode(text)
        assert from_directory.encode(text) == ids
        for skip in (True, False):
            assert from_directory.decode(ids, skip_special_tokens=skip) == from_gguf.decode(ids, skip_special_tokens=skip)
    broken = [from_gguf._encoder.token_to_id(token) for token in ("<0xC3>", "<0xA9>", "<0xFF>")]
    assert from_directory.decode(broken) == "é\ufffd"
