"""Scripts of the scripted executor: their JSON form, and what one says token by token.

A file holds `{"rules": [...]}`; of those whose `match` is part of the prompt's text (or who have none) the first counts. A
prompt may hold a script itself, between `<script>` and `</script>`. Pure: no clock, no state.
"""

from __future__ import annotations

import bisect
import json
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from millstream.errors import RequestError, StartupError
from millstream.text.byte_table import BYTE_LEVEL_ALPHABET
from millstream.text.tokenizer import Tokenizer

OPEN_TAG = "<script>"
MAX_DELAY_S = 3600.0
Delay = Annotated[float, Meta(ge=0, le=MAX_DELAY_S * 1000)]  # milliseconds; the bounds refuse NaN, too


class RawPiece(Struct, forbid_unknown_fields=True, frozen=True):
    """Tokens that no text gives: token ids as they are, or bytes in hexadecimal, a token each."""

    ids: list[int] = []
    bytes: str = ""


Piece = str | RawPiece


class Fault(Struct, forbid_unknown_fields=True, frozen=True):
    """What goes wrong in the step after `after` steps of a request."""

    kind: Literal["error", "raise", "exit", "hang"]
    after: Annotated[int, Meta(ge=0)] = 0  # steps that brought tokens
    seconds: Annotated[float, Meta(ge=0, le=MAX_DELAY_S)] = 1.0  # of a hang


class ScriptSpec(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One script as JSON. Each item of `pieces` is a step; a list is several pieces in one step."""

    match: str | None = None  # in a rule: what the prompt's text must contain
    pieces: list[Piece | list[Piece]] = []
    finish: Literal["stop", "length"] = "stop"  # after the pieces: nothing, or the built-in text
    delay_ms: Delay = 0.0  # before the first token
    step_ms: Delay = 0.0  # between two steps
    fault: Fault | None = None


class RuleFile(Struct, forbid_unknown_fields=True, frozen=True):
    """The file that `--script` names."""

    rules: list[ScriptSpec]


class Script:
    """What one request gets, as a function of the number of tokens it already has.

    `endless` goes on after the pieces of a script that finishes by `length`, and where one that stops may not yet.
    """

    def __init__(self, spec: ScriptSpec, steps: list[list[int]], endless: list[int]) -> None:
        self.delay_s = spec.delay_ms / 1000
        self.step_s = spec.step_ms / 1000
        self.fault = spec.fault
        self._steps = [step for step in steps if step]
        self._ends = list(accumulate(len(step) for step in self._steps))  # [i]: tokens up to the end of step i
        self._length = self._ends[-1] if self._ends else 0
        self._stops = spec.finish == "stop"
        self._endless = endless
        # a fault after the last piece needs one step more to happen in
        self.faults_at_end = spec.fault is not None and spec.fault.after == len(self._steps)

    def num_steps(self, position: int) -> int:
        """Steps that brought the first `position` tokens."""
        if position < self._length:
            return bisect.bisect_right(self._ends, position)
        return len(self._steps) + position - self._length

    def tokens(self, position: int) -> list[int]:
        """The tokens of the step that follows `position` tokens: a step that was cut goes on where it was cut."""
        if position < self._length:
            step = bisect.bisect_right(self._ends, position)
            return self._steps[step][position - self._ends[step] :]
        return [self.filler(position - self._length)]

    def is_said(self, position: int) -> bool:
        """Whether nothing follows `position` tokens."""
        return self._stops and position >= self._length

    def filler(self, position: int) -> int:
        """A token of the built-in text: what stands in for a token that may not be drawn."""
        return self._endless[position % len(self._endless)]


class ScriptBook:
    """Finds the script of a prompt. Made once; `rules` come from the file, None reads each prompt's own."""

    def __init__(self, *, tokenizer: Tokenizer, endless: list[int], rules: list[ScriptSpec] | None) -> None:
        self._tokenizer = tokenizer
        self._endless = endless
        self._byte_ids = _byte_token_ids()
        self._rules = None if rules is None else [(spec.match, self._script(spec)) for spec in rules]
        self._default = self._script(ScriptSpec(finish="length"))

    def script_for(self, prompt_ids: list[int]) -> Script:
        """The script of a prompt; where nothing applies, the built-in text without end.

        Raises:
            RequestError: the script in the prompt is not valid.
        """
        text = self._tokenizer.decode(prompt_ids, skip_special_tokens=False)
        if self._rules is not None:
            return next((script for match, script in self._rules if match is None or match in text), self._default)
        start = text.rfind(OPEN_TAG)
        if start < 0:
            return self._default
        return self._script(_parse_inline(text[start + len(OPEN_TAG) :]))

    def _script(self, spec: ScriptSpec) -> Script:
        steps = [item if isinstance(item, list) else [item] for item in spec.pieces]
        ids = [[token_id for piece in step for token_id in self._ids(piece)] for step in steps]
        return Script(spec, ids, self._endless)

    def _ids(self, piece: Piece) -> list[int]:
        if isinstance(piece, str):
            return self._tokenizer.encode(piece, add_special_tokens=False)
        for token_id in piece.ids:
            if not 0 <= token_id < self._tokenizer.vocab_size:
                raise RequestError(f"the script has token id {token_id}; ids go from 0 to {self._tokenizer.vocab_size - 1}.")
        try:
            return piece.ids + [self._byte_ids[byte] for byte in bytes.fromhex(piece.bytes)]
        except ValueError as error:
            raise RequestError(f"the script has bytes `{piece.bytes}`, which are not hexadecimal.") from error


def read_rules(path: Path) -> list[ScriptSpec]:
    """Read a file of rules.

    Raises:
        StartupError: it is missing or not valid.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=RuleFile).rules
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartupError(
            f"the script `{path}` cannot be used: {error}", hint='its form is {"rules": [{"match": "...", "pieces": ["..."]}]}'
        ) from error


def _parse_inline(text: str) -> ScriptSpec:
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())  # what follows the JSON is the prompt's own
        spec = msgspec.convert(value, ScriptSpec)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise RequestError(f"the script in the prompt is not valid: {error}") from error
    if spec.match is not None:
        raise RequestError("the script in the prompt is not valid: `match` is for the rules of a file.")
    return spec


def _byte_token_ids() -> list[int]:
    """The id of each single byte in the scripted tokenizer: [0] of byte 0x00, and so on."""
    asset = resources.files("millstream.text") / "assets" / "scripted_tokenizer.json"
    vocabulary: dict[str, int] = json.loads(asset.read_text(encoding="utf-8"))["model"]["vocab"]
    return [vocabulary[character] for character in BYTE_LEVEL_ALPHABET]
