"""InternLM 2 and 3: an object between tokens for actions."""

from millstream.parsing.forms import JsonObject
from millstream.parsing.stage import Example, ToolFormat

_BEGIN, _END = "<|action_start|><|plugin|>", "<|action_end|>"

INTERNLM = ToolFormat(
    name="internlm",
    form=JsonObject(close=_END),
    opens=(_BEGIN, "<|action_start|> <|plugin|>"),
    template_marks=("<|plugin|>",),
    examples=(
        Example(
            f'Hm.{_BEGIN}\n{{"name": "get_weather", "parameters": {{"city": "Bern"}}}}{_END}\n',
            "Hm.",
            (("get_weather", '{"city": "Bern"}'),),
        ),
    ),
)
