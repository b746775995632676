from __future__ import annotations

import runpy
import threading
import time
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from millstream.errors import RequestError
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, scripted_text
from millstream.text.tokenizer_data import TokenizerData
from tests.support.made_tokenizers import library_decode, wrap


def reference(embedded: Tokenizer) -> tokenizers.Tokenizer:
    """The embedded model's published pipeline, built here from the library's parts."""
    built = tokenizers.Tokenizer(embedded._encoder.model)
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return built


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("x\n 12 345", [104, 3805, 33, 34, 216, 35, 36, 37]),
        ("Hello world", [19556, 905]),
        ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
        ("", []),
    ],
)
def test_the_embedded_model_gets_the_ids_it_was_trained_on(embedded: Tokenizer, text: str, ids: list[int]) -> None:
    assert embedded.encode(text) == ids
    assert embedded.encode(text, add_special_tokens=False) == ids


def test_the_embedded_model_reads_the_multilingual_text_as_its_published_pipeline(embedded: Tokenizer) -> None:
    for line in scripted_text().splitlines(keepends=True):
        assert embedded.encode(line) == reference(embedded).encode(line).ids


def test_digits_are_split_one_by_one_before_anything_else(embedded: Tokenizer) -> None:
    assert [embedded.decode([token_id]) for token_id in embedded.encode("x\n 12 345")] == ["x", "\n ", *"12", " ", *"345"]


def test_every_id_of_the_embedded_model_decodes_as_the_library_decodes_it(embedded: Tokenizer) -> None:
    assert embedded.vocab_size == 49152
    for skip_special_tokens in (True, False):
        for token_id in range(embedded.vocab_size):
            text = embedded.decode([token_id], skip_special_tokens=skip_special_tokens)
            assert text == library_decode(embedded, [token_id], skip_special_tokens=skip_special_tokens)


def test_the_embedded_model_ends_with_its_end_of_turn_token(embedded: Tokenizer) -> None:
    assert embedded.eos_token_ids == {2}
    assert embedded.special_tokens["bos_token"] == "<|im_start|>"
    assert embedded.special_tokens["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_text_in_every_script_survives_the_round_trip(embedded: Tokenizer, scripted: Tokenizer, form: str) -> None:
    text = unicodedata.normalize(form, scripted_text())  # type: ignore[arg-type]
    for tokenizer in (embedded, scripted):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_scripted_text_has_many_scripts_and_split_characters(scripted: Tokenizer) -> None:
    ids = scripted.encode(scripted_text())
    assert 1000 <= scripted.vocab_size <= 2000
    assert sum("\ufffd" in scripted.decode([token_id]) for token_id in ids) > len(ids) / 10
    scripts = {unicodedata.name(char).split()[0] for char in scripted_text() if char.isalpha()}
    assert {"LATIN", "CYRILLIC", "GREEK", "HEBREW", "ARABIC", "DEVANAGARI", "THAI", "CJK", "HIRAGANA", "HANGUL"} <= scripts
    assert "\u200d" in scripted_text()
    assert "\u0301" in scripted_text()


def test_the_scripted_tokenizer_knows_chatml(scripted: Tokenizer) -> None:
    ids = scripted.encode("<|im_start|>user\nhi<|im_end|>\n<|endoftext|>", add_special_tokens=False)
    assert scripted.eos_token_ids == {ids[-1], ids[-3]}
    assert scripted.decode(ids) == "user\nhi\n"
    assert scripted.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>"


def test_the_shipped_scripted_tokenizer_is_what_its_script_trains(scripted: Tokenizer) -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "train_scripted_tokenizer.py"))
    assert script["train"](scripted_text()).to_str() == scripted._encoder.to_str()


@pytest.mark.parametrize("spaces", [True, False])
def test_spaces_between_special_tokens_never_change_the_text(scripted: Tokenizer, spaces: bool) -> None:
    ids = scripted.encode("a<|im_end|><|im_end|>b")
    text = scripted.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=spaces)
    assert text == "a<|im_end|><|im_end|>b"


def test_a_template_given_at_load_replaces_the_models_and_its_end_of_turn() -> None:
    tokenizer = load_scripted_tokenizer(chat_template="{{ messages[-1].content }}<|im_start|>")
    assert tokenizer.chat_template == "{{ messages[-1].content }}<|im_start|>"
    assert tokenizer.encode("<|im_start|>")[0] in tokenizer.eos_token_ids


def test_text_right_after_an_answer_is_no_end_of_turn_unless_it_is_a_special_token() -> None:
    plain = load_scripted_tokenizer(chat_template="{{ messages[-1].content }}\nUser:")
    assert plain.eos_token_ids == load_scripted_tokenizer().eos_token_ids


def test_a_lone_surrogate_is_the_clients_error(scripted: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        scripted.encode("a\ud800")


def longest_wait(tokenizer: Tokenizer, text: str) -> float:
    """How long this thread stood still at most while another one encoded, as a part of the whole encoding."""
    spans: list[tuple[float, float]] = []

    def encode() -> None:
        begun = time.perf_counter()
        tokenizer.encode(text)
        spans.append((begun, time.perf_counter()))

    thread = threading.Thread(target=encode)
    thread.start()
    turns = []
    while not spans:
        turns.append(time.perf_counter())
    thread.join()
    begun, ended = spans[0]
    inside = [begun, *[turn for turn in turns if begun < turn < ended], ended]
    return max(after - before for before, after in pairwise(inside)) / (ended - begun)


def test_encoding_a_long_text_lets_other_threads_run(scripted: Tokenizer) -> None:
    text = scripted_text() * 100
    # a busy machine may stop this thread once, but not every time; under the interpreter lock the part is close to 1
    assert any(longest_wait(scripted, text) < 0.5 for _ in range(5))


def test_a_tokenizer_that_does_not_decode_as_described_gets_no_table(caplog: pytest.LogCaptureFixture) -> None:
    encoder = tokenizers.Tokenizer(models.BPE(vocab={"Ġa": 0, "b": 1}, merges=[]))
    encoder.decoder = decoders.ByteLevel()
    wrong = Tokenizer(TokenizerData(encoder=encoder, tokens=["Ġx", "b"], special_ids=frozenset(), eos_token_ids=frozenset()))
    assert wrong.decode([0, 1]) == " ab"
    assert "window decoder" in caplog.text


def test_a_gap_in_the_vocabulary_decodes_to_nothing() -> None:
    encoder = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 3}, merges=[]))
    encoder.decoder = decoders.ByteLevel()
    tokenizer = wrap(encoder)
    assert tokenizer.vocab_size == 4
    assert tokenizer.decode([0, 1, 2, 3]) == "ab"
