"""/v1/embeddings as the official client sees it, over a real server."""

from __future__ import annotations

import base64
from hashlib import sha256

import httpx
import numpy as np
import openai
import pytest

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import open_checkpoint
from millstream.text.tokenizer import load_scripted_tokenizer

TOKENIZER = load_scripted_tokenizer()


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def scripted(text: str) -> list[float]:
    """What the scripted executor says a text is: see docs/scripted-executor.md."""
    numbers = np.frombuffer(sha256(np.array(TOKENIZER.encode(text), "<i4").tobytes()).digest(), "<i4") / 2.0**31
    return [float(number) for number in numbers.astype(np.float32) / np.linalg.norm(numbers)]


def test_the_client_gets_the_same_numbers_by_either_format(scripted_server: str) -> None:
    with client_of(scripted_server) as client:
        texts = ["a fox", "a dog", "a fox", "три кошки"]
        default = client.embeddings.create(model="scripted", input=texts)  # base64, which the client decodes
        floats = client.embeddings.create(model="scripted", input=texts, encoding_format="float")
        assert [item.index for item in default.data] == [0, 1, 2, 3]
        for text, one, other in zip(texts, default.data, floats.data, strict=True):
            np.testing.assert_array_equal(np.array(one.embedding, np.float32), np.array(other.embedding, np.float32))
            np.testing.assert_allclose(one.embedding, scripted(text), rtol=1e-6)
        assert default.usage == floats.usage
        assert default.usage.prompt_tokens == default.usage.total_tokens == sum(len(TOKENIZER.encode(text)) for text in texts)
        coded = client.embeddings.create(model="scripted", input=texts[0], encoding_format="base64", dimensions=3)
        raw = coded.data[0].embedding
        numbers = np.frombuffer(base64.b64decode(raw), "<f4") if isinstance(raw, str) else np.array(raw)
        assert len(numbers) == 3
        assert np.linalg.norm(numbers) == pytest.approx(1.0)


def test_errors_are_the_client_s_own_classes(scripted_server: str) -> None:
    with client_of(scripted_server) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="scripted", input="")
        assert caught.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="other", input="a")


def test_more_inputs_than_the_server_holds_are_answered_in_order(scripted_server: str) -> None:
    with client_of(scripted_server) as client:
        made = client.embeddings.create(model="scripted", input=[[300 + number] for number in range(1200)])
        assert len(made.data) == 1200
        assert made.data[7].embedding == client.embeddings.create(model="scripted", input=[307]).data[0].embedding
    with httpx.Client(base_url=scripted_server) as http:
        assert http.get("/server_info").json()["live_requests"] == 0


@pytest.mark.long
def test_texts_of_one_meaning_are_nearer_than_others_and_company_changes_nothing(model_server: str) -> None:
    with client_of(model_server) as client:
        texts = ["The cat sleeps on the sofa.", "A kitten is sleeping on the couch.", "Interest rates rose by two percent."]
        texts += [f"Filler number {number} of some length." for number in range(40)]
        made = np.array([item.embedding for item in client.embeddings.create(model="", input=texts).data])
        np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1.0, rtol=1e-5)
        assert made[0] @ made[1] > made[0] @ made[2]
        alone = client.embeddings.create(model="", input=texts[0]).data[0].embedding
        np.testing.assert_array_equal(np.array(alone), made[0])


@pytest.mark.long
def test_the_table_s_own_rows_as_input_say_what_their_ids_say(model_server: str) -> None:
    checkpoint = open_checkpoint(resolve_model("embedded"))
    table = np.empty((checkpoint.config.vocab_size, checkpoint.config.hidden_size), np.float32)
    checkpoint.read("embedding", table)
    with httpx.Client(base_url=model_server, timeout=60) as http:
        ids = http.post("/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]
        sampling = {"temperature": 0, "max_new_tokens": 12}
        for body in ({}, {"return_logprob": True, "stream": False}):
            by_ids = http.post("/generate", json={"input_ids": ids, "sampling_params": sampling, **body}).json()
            by_embeds = http.post(
                "/generate", json={"input_embeds": table[ids].tolist(), "sampling_params": sampling, **body}
            ).json()
            assert by_embeds["output_ids"] == by_ids["output_ids"]
            assert by_embeds["meta_info"].get("output_token_logprobs") == by_ids["meta_info"].get("output_token_logprobs")
        other = http.post("/generate", json={"input_ids": [0] * len(ids), "sampling_params": {"max_new_tokens": 1}}).json()
        assert other["meta_info"]["cached_tokens"] == 0
