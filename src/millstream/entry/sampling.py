"""The sampling, stop and display fields that every API shares by name, and how they become `SamplingParams`."""

from __future__ import annotations

from msgspec import Struct

from millstream.entry.grammar import JsonSource, only_one, spec_of
from millstream.entry.limits import (
    FrequencyPenalty,
    LogitBias,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    StopRegex,
    StopRegexes,
    StopString,
    StopStrings,
    StopTokenIds,
    Temperature,
    TopK,
    TopP,
)
from millstream.errors import RequestError
from millstream.messages import SamplingParams
from millstream.messages.grammar import GrammarSpec
from millstream.text.regex import compile_patterns

SEEDS = 2**64


class SamplingFields(Struct, kw_only=True):
    """Fields with OpenAI's and SGLang's names and OpenAI's defaults. Ranges are checked by `SamplingParams.verify`."""

    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = -1
    min_p: MinP = 0.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    logit_bias: LogitBias = {}
    seed: Seed | None = None
    stop: StopString | StopStrings = []
    stop_regex: StopRegex | StopRegexes = []
    stop_token_ids: StopTokenIds = []
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    json_schema: JsonSource | None = None  # of these four, and of an API's own fields of the kind, one
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: JsonSource | None = None

    def to_sampling(self, *, max_new_tokens: int | None, min_new_tokens: int, choice: int = 0) -> SamplingParams:
        """The parameters of choice number `choice`.

        Raises:
            RequestError: the seed has more than 64 bits, a stop regex cannot be used, or there are two grammars.
        """
        check_seed("seed", self.seed)
        stop_regex = (self.stop_regex,) if isinstance(self.stop_regex, str) else tuple(self.stop_regex)
        compile_patterns(stop_regex)
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            seed=seed_of_choice(self.seed, choice),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_regex=stop_regex,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            no_stop_trim=self.no_stop_trim,
            skip_special_tokens=self.skip_special_tokens,
            spaces_between_special_tokens=self.spaces_between_special_tokens,
            grammar=only_one(self.grammars()),
        )

    def grammars(self) -> list[GrammarSpec | None]:
        """What each field asks of the form of the text; of those that ask for something there may be one."""
        return [
            spec_of("json_schema", self.json_schema, "json_schema"),
            spec_of("regex", self.regex, "regex"),
            spec_of("ebnf", self.ebnf, "ebnf"),
            spec_of("structural_tag", self.structural_tag, "structural_tag"),
        ]


def check_seed(name: str, seed: int | None) -> None:
    """Check the seed in the field `name`; None: there is none.

    Raises:
        RequestError: it has more than 64 bits.
    """
    if seed is not None and not -(2**63) <= seed < SEEDS:
        raise RequestError(f"{name} is {seed}; it must be an integer of 64 bits.", param=name)


def seed_of_choice(seed: int | None, choice: int) -> int | None:
    """The seed of choice number `choice`: a given one counts up, so that choices differ and can be repeated."""
    return None if seed is None else (seed + choice) % SEEDS


def cache_namespace(cache_salt: str, extra_key: str) -> str:
    """The prefix-cache namespace for the two names that clients know it by; no two pairs share one."""
    return f"{len(cache_salt)}:{cache_salt}{extra_key}" if cache_salt or extra_key else ""
