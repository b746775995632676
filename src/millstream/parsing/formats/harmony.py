"""gpt-oss: messages in channels. `analysis` is reasoning, a recipient `functions.NAME` a call, everything else the answer."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import SPACE, WORD, Maybe, NamedJson
from millstream.parsing.reasoning import ReasoningFormat, Thought
from millstream.parsing.stage import Example, ToolFormat

_CALL = "<|channel|>commentary to=functions."

GPT_OSS_TOOLS = ToolFormat(
    name="gpt-oss",
    aliases=("gpt_oss", "harmony", "openai"),
    form=NamedJson(
        after=(SPACE, Maybe("<|channel|>commentary"), SPACE, Maybe("<|constrain|>"), SPACE, WORD, SPACE, "<|message|>"),
        end=(Maybe("<|call|>"),),
    ),
    opens=(
        _CALL,
        "<|channel|>analysis to=functions.",
        "<|start|>assistant to=functions.",
        "<|start|>assistant<|channel|>commentary to=functions.",
        "<|start|>assistant<|channel|>analysis to=functions.",
    ),
    template_marks=("<|channel|>", "to=functions."),
    written=(Writing(begin=_CALL, after_name=" <|constrain|>json<|message|>", end="", is_single=True),),
    examples=(
        Example(
            _CALL + 'get_weather <|constrain|>json<|message|>{"city": "Bern"}<|call|>',
            calls=(("get_weather", '{"city": "Bern"}'),),
        ),
        Example("<|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}", calls=(("ping", "{}"),)),
    ),
)

GPT_OSS = ReasoningFormat(
    name="gpt-oss",
    aliases=("gpt_oss", "harmony", "openai_gptoss"),
    begin="<|channel|>analysis<|message|>",
    end="<|end|>",
    others=("<|start|>assistant<|channel|>analysis<|message|>",),
    is_anywhere=True,
    dropped=(
        "<|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|start|>assistant<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
    ),
    template_marks=("<|channel|>analysis",),
    after="<|start|>assistant",
    answer="<|channel|>final<|message|>",
    examples=(
        Thought(
            "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
            "Two and two.",
            "Four.",
        ),
        Thought("<|channel|>final<|message|>Four.", "", "Four."),
    ),
)
