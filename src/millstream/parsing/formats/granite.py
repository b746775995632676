"""Granite 3 and Phi-4-mini: a list of objects behind `<|tool_call|>`. Granite 4 writes as Hermes does."""

from millstream.parsing.forms import JsonObject
from millstream.parsing.stage import Example, ToolFormat

_BEGIN, _END = "<|tool_call|>", "<|/tool_call|>"
_TWO = '[{"name": "get_weather", "arguments": {"city": "Bern"}}, {"name": "ping", "arguments": {}}]'
_CALLS = (("get_weather", '{"city": "Bern"}'), ("ping", "{}"))

GRANITE = ToolFormat(
    name="granite",
    form=JsonObject(in_list=True, close=_END),
    opens=(_BEGIN,),
    template_marks=(_BEGIN, "JSON list of tools"),
    examples=(
        Example(f"{_BEGIN}{_TWO}", calls=_CALLS),
        Example(f"So.{_BEGIN} {_TWO} And", "So.And", _CALLS),
        Example(f"{_BEGIN} is a token", f"{_BEGIN} is a token"),
    ),
)

PHI4_MINI = ToolFormat(
    name="phi4_mini",
    aliases=("phi4_mini_json",),
    form=JsonObject(in_list=True, close=_END),
    opens=(_BEGIN, "functools"),
    template_marks=("<|tool|>", "<|/tool|>"),
    examples=(
        Example(f"{_BEGIN}{_TWO}{_END}", calls=_CALLS),
        Example(f"functools{_TWO}", calls=_CALLS),
        Example("Take functools.partial, or functools", "Take functools.partial, or functools"),
    ),
)
