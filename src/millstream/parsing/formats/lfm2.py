"""LFM2: calls as Python writes them, between tokens."""

from millstream.parsing.forms import PythonCalls
from millstream.parsing.stage import Example, ToolFormat

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"

LFM2 = ToolFormat(
    name="lfm2",
    form=PythonCalls(close=_END),
    opens=(_BEGIN,),
    template_marks=(_BEGIN,),
    examples=(
        Example(
            f"{_BEGIN}[get_weather(city='Bern', days=2), ping()]{_END}I look.",
            "I look.",
            (("get_weather", '{"city": "Bern", "days": 2}'), ("ping", "{}")),
        ),
    ),
)
