"""POST /generate: what is wrong is refused by name, whichever prompt of a batch it belongs to, before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.entry.native.protocol import GENERATE, SAMPLING
from tests.support.asgi import post, run
from tests.support.engine import CONTEXT_LENGTH, TOKENIZER, Entry

PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({}, "text"),
    ({"text": "a", "input_ids": [1]}, "text"),
    ({"text": ""}, "text"),
    ({"text": []}, "text"),
    ({"text": ["a", ""]}, "text[1]"),
    ({"text": ["a", 5]}, "text[1]"),
    ({"text": ["a", "word " * 2000]}, "text[1]"),
    ({"text": {"a": 1}}, "text"),
    ({"text": ["a"] * 521}, "text"),
    ({"input_ids": []}, "input_ids"),
    ({"input_ids": [[]]}, "input_ids[0]"),
    ({"input_ids": [[1], []]}, "input_ids[1]"),
    ({"input_ids": [1.5]}, "input_ids[0]"),
    ({"input_ids": [True]}, "input_ids[0]"),
    ({"input_ids": [[1], ["a"]]}, "input_ids[1][0]"),
    ({"input_ids": [10**30]}, "input_ids"),
    ({"input_ids": [[1], [-1]]}, "input_ids[1]"),
    ({"input_ids": [[1], [TOKENIZER.vocab_size]]}, "input_ids[1]"),
    ({"input_ids": [[1], [1] * CONTEXT_LENGTH]}, "input_ids[1]"),
    ({"input_ids": [[1], 2]}, "input_ids"),
    ({"input_ids": [[[1]]]}, "input_ids[0][0]"),
    ({"input_ids": [[1]] * 521}, "input_ids"),
]

ONE: list[tuple[str, Any]] = [  # of any body
    ("rid", ""),
    ("rid", 5),
    ("rid", "x" * 129),
    ("rid", "a\nb"),
    ("stream", "yes"),
    ("stream", 1),
    ("incremental_streaming_output", 2),
    ("timeout", -1),
    ("timeout", "soon"),
    ("priority", 3),
    ("priority", 2**70),
    ("cache_salt", 5),
    ("return_prompt_token_ids", "no"),
    ("return_logprob", "yes"),
    ("return_logprob", 1),
    ("logprob_start_len", -2),
    ("logprob_start_len", 1.5),
    ("logprob_start_len", "0"),
    ("top_logprobs_num", -1),
    ("top_logprobs_num", 129),
    ("top_logprobs_num", 10**30),
    ("token_ids_logprob", [-1]),
    ("token_ids_logprob", [TOKENIZER.vocab_size]),
    ("token_ids_logprob", [1] * 1025),
    ("token_ids_logprob", 5),
    ("return_text_in_logprobs", "yes"),
    ("return_hidden_states", True),
    ("return_hidden_states", "last"),
    ("custom_labels", {"a": "b"}),
    ("lora_path", "x"),
    ("session_params", {"id": 1}),
    ("custom_logit_processor", "x"),
    ("image_data", "http://x/y.png"),
    ("routed_dp_rank", 1),
    ("return_bytes", True),
    ("nonsense", 1),
]

SAMPLES: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 129),
    ("n", -1),
    ("n", 1.5),
    ("n", "2"),
    ("temperature", -1),
    ("temperature", "hot"),
    ("temperature", 101),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_k", 0),
    ("top_k", 10**30),
    ("min_p", -0.1),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("max_new_tokens", -1),
    ("max_new_tokens", 2**31),
    ("max_new_tokens", "many"),
    ("min_new_tokens", -1),
    ("min_new_tokens", 129),  # more than the default of max_new_tokens
    ("sampling_seed", 2**64),
    ("seed", 2**70),
    ("seed", "x"),
    ("stop", [""]),
    ("stop", ["a"] * 33),
    ("stop", "x" * 1025),
    ("stop_regex", "("),
    ("stop_regex", "a*"),
    ("stop_token_ids", [TOKENIZER.vocab_size]),
    ("stop_token_ids", "x"),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"-5": 1}),
    ("regex", 5),
    ("json_schema", 5),
    ("beam_width", 4),
    ("custom_params", {"a": 1}),
    ("stream_interval", 5),
    ("temprature", 1),
]

SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
    ({"text": ["a"], "sampling_params": [{}, {}]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}, 5]}, "sampling_params[1]"),
    ({"text": ["a", "b"], "sampling_params": [{"n": 2}, {"n": 3}]}, "sampling_params[1].n"),
    ({"text": ["a"] * 10, "sampling_params": {"n": 100}}, "sampling_params.n"),
    ({"text": "a", "sampling_params": {"seed": 1, "sampling_seed": 2}}, "sampling_params.sampling_seed"),
    ({"text": "a", "sampling_params": {"min_new_tokens": 6, "max_new_tokens": 5}}, "sampling_params.min_new_tokens"),
    ({"text": "a", "rid": ["x"]}, "rid"),
    ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
    ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
    ({"text": ["a", "b"], "rid": ["x", ""]}, "rid"),
    ({"text": "a", "cache_salt": ["x"]}, "cache_salt"),
    ({"text": ["a", "b"], "extra_key": ["x"]}, "extra_key"),
    ({"text": "a", "return_logprob": [True]}, "return_logprob"),
    ({"text": ["a", "b"], "return_logprob": [True]}, "return_logprob"),
    ({"text": ["a", "b"], "return_logprob": True, "logprob_start_len": [0]}, "logprob_start_len"),
    ({"text": ["a", "b"], "return_logprob": True, "top_logprobs_num": [0, 129]}, "top_logprobs_num"),
    ({"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1], 2]}, "token_ids_logprob"),
    ({"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1]]}, "token_ids_logprob"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [[1]]}, "token_ids_logprob"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 400}, "logprob_start_len"),
    ({"text": "a", "logprob_start_len": 0}, "logprob_start_len"),
    ({"text": "a", "top_logprobs_num": 2}, "top_logprobs_num"),
    ({"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob"),
    ({"text": ["a", "b"], "return_logprob": [True, False], "top_logprobs_num": 2}, "top_logprobs_num"),
]


def cases() -> list[tuple[dict[str, Any], str]]:
    """Every wrong value alone and in a batch."""
    made = [*PROMPTS, *SHAPES]
    for name, value in ONE:
        param = f"{name}[0]" if name == "token_ids_logprob" and value == ["x"] else name
        made += [({"text": "a", name: value}, param), ({"input_ids": [[5], [6]], name: value}, param)]
    for name, value in SAMPLES:
        made.append(({"text": "a", "sampling_params": {name: value}}, f"sampling_params.{name}"))
        made.append(({"text": ["a", "b"], "sampling_params": {name: value}}, f"sampling_params.{name}"))
        made.append(({"text": ["a", "b"], "sampling_params": [{}, {name: value}]}, f"sampling_params[1].{name}"))
    return made


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_every_wrong_value_is_a_400_that_names_it_and_nothing_is_sent(stream: bool) -> None:
    async def scenario() -> list[str]:
        entry = Entry()
        wrong = []
        for body, param in cases():
            response = await post(entry.app, "/generate", {"stream": stream, **body})
            shown = f"{str(body)[:200]}: {response.status} {response.content[:300]!r}"
            if response.status != 400:
                wrong.append(shown)
                continue
            found = response.error["param"] or ""
            field = param.rpartition(".")[2].partition("[")[0]
            # values inside lists and objects are named with their place
            if not (found == param or found.startswith(f"{param}[") or found.startswith(f"{param}.")):
                wrong.append(f"{param}: {shown}")
            elif field not in response.error["message"] and "prompt" not in response.error["message"]:
                wrong.append(f"the message does not name {field}: {shown}")
        assert entry.engine.sent == []
        assert entry.manager.live_requests == 0
        assert (await post(entry.app, "/generate", {"text": "a"})).status == 200
        return wrong

    wrong = run(scenario())
    assert not wrong, "\n".join(wrong)


def test_log_probabilities_are_refused_by_name_where_the_executor_has_none() -> None:
    async def scenario() -> None:
        response = await post(Entry(has_logprobs=False).app, "/generate", {"text": "a", "return_logprob": True})
        assert (response.status, response.error["param"]) == (400, "return_logprob")
        assert response.error["code"] == "unsupported_parameter"

    run(scenario())


def test_what_asks_for_nothing_passes() -> None:
    async def scenario() -> None:
        entry = Entry()
        neutral = {name: rule.neutral[0] for name, rule in GENERATE.refused.items() if rule.neutral}
        sampling = {name: rule.neutral[0] for name, rule in SAMPLING.refused.items() if rule.neutral}
        body = {"text": "a", "sampling_params": sampling, **neutral, **dict.fromkeys(GENERATE.without_effect, "x")}
        assert (await post(entry.app, "/generate", body)).status == 200
        nothing = dict.fromkeys((*GENERATE.honoured.__struct_fields__, *GENERATE.refused), None)
        assert (await post(entry.app, "/generate", {**nothing, "text": ["a"]})).status == 200

    run(scenario())
