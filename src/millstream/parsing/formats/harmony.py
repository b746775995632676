"""gpt-oss: messages in channels. `analysis` is reasoning, a recipient `functions.NAME` a call, everything else the answer.

The prompt ends in `<|start|>assistant`, so that a text begins with a channel, or with a recipient. Later messages have a whole
header, whose recipient stands before or behind the channel. `<|call|>` and `<|return|>` end generation, and are often missing.
"""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import SPACE, WORD, Maybe, NamedJson
from millstream.parsing.frames import Frames
from millstream.parsing.reasoning import ReasoningFormat, Thought
from millstream.parsing.stage import Example, ToolFormat

_CALL = "<|channel|>commentary to=functions."
_START = "<|start|>assistant"

GPT_OSS_TOOLS = ToolFormat(
    name="gpt-oss",
    aliases=("gpt_oss", "harmony", "openai"),
    form=NamedJson(
        after=(
            SPACE,
            Maybe("<|channel|>"),
            Maybe("commentary"),
            Maybe("analysis"),
            SPACE,
            Maybe("<|constrain|>"),
            SPACE,
            WORD,
            SPACE,
            "<|message|>",
            SPACE,
        ),
        end=(SPACE, Maybe("<|call|>"), Maybe("<|end|>")),
    ),
    opens=(
        _CALL,
        "<|channel|>analysis to=functions.",
        f"{_START} to=functions.",
        f"{_START}{_CALL}",
        f"{_START}<|channel|>analysis to=functions.",
        " to=functions.",
    ),
    template_marks=("<|channel|>", "to=functions."),
    written=(Writing(begin=_CALL, after_name=" <|constrain|>json<|message|>", end="", is_single=True),),
    examples=(
        Example(
            _CALL + 'get_weather <|constrain|>json<|message|>{"city": "Bern"}<|call|>',
            calls=(("get_weather", '{"city": "Bern"}'),),
        ),
        Example(f"{_START} to=functions.ping<|channel|>commentary json<|message|>{{}}", calls=(("ping", "{}"),)),
        Example(
            f" to=functions.ping<|channel|>commentary <|constrain|>json<|message|>{{}}<|call|>{_START}{_CALL}"
            'get_weather<|channel|>commentary code<|message|>{"city": "<|end|><|call|>"}<|call|>',
            calls=(("ping", "{}"), ("get_weather", '{"city": "<|end|><|call|>"}')),
        ),
        Example(f"Write to=functions.ping before {_CALL}", f"Write to=functions.ping before {_CALL}"),
    ),
)

GPT_OSS = ReasoningFormat(
    name="gpt-oss",
    aliases=("gpt_oss", "harmony", "openai_gptoss"),
    begin="<|channel|>analysis<|message|>",
    end="<|end|>",
    is_special=True,
    frames=Frames(
        begins=("<|start|>", "<|channel|>"),
        first="to=",
        message="<|message|>",
        ends=("<|end|>", "<|return|>", "<|call|>"),
        thinks=r"<\|channel\|>analysis",
        calls=r"(?:^|\s|>)to=",
    ),
    template_marks=("<|channel|>analysis",),
    after="<|start|>assistant",
    answer="<|channel|>final<|message|>",
    examples=(
        Thought(
            f"<|channel|>analysis<|message|>Two and two.<|end|>{_START}<|channel|>final<|message|>Four.<|return|>",
            "Two and two.",
            "Four.",
        ),
        Thought("<|channel|>final<|message|>Four.", "", "Four."),
        Thought('<|channel|>final <|constrain|>json<|message|>{"a": 4}', "", '{"a": 4}'),
        Thought(
            f"<|channel|>commentary<|message|>One moment. <|end|>{_START}<|channel|>analysis<|message|> So.<|end|>"
            f"{_START}<|channel|>analysis<|message|>Yes.{_START}<|channel|>final<|message|>Four.",
            "So.Yes.",
            "One moment. Four.",
        ),
        Thought(f"Two and two.<|end|>{_START}<|channel|>final<|message|>Four.", "Two and two.", "Four.", is_open=True),
        Thought(
            f'<|channel|>analysis<|message|>Hm<|end|>{_START}{_CALL}f<|message|>{{"a": "<|end|>{_START}"}}<|call|>',
            "Hm",
            f'{_START}{_CALL}f<|message|>{{"a": "<|end|>{_START}"}}',
        ),
        Thought(
            "<|channel|>is a mark, and so is <|start|>\n<|message|>",
            "",
            "<|channel|>is a mark, and so is <|start|>\n<|message|>",
        ),
    ),
)
