"""Tags `invoke` and `parameter` with names in quotes: MiniMax M2, Step-3, and DeepSeek V3.2, which says what is a string."""

from millstream.parsing.forms import SPACE, Maybe, Tagged
from millstream.parsing.stage import Example, ToolFormat

MINIMAX_M2 = ToolFormat(
    name="minimax-m2",
    aliases=("minimax_m2", "minimax"),
    form=Tagged(after=('">',), key=('<parameter name="', '">'), value=("", "</parameter>"), close="</invoke>"),
    opens=('<invoke name="',),
    section=("<minimax:tool_call>", "</minimax:tool_call>"),
    template_marks=("minimax:tool_call",),
    examples=(
        Example(
            'Hm.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Köln</parameter>\n'
            '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
            "Hm.",
            (("get_weather", '{"city": "Köln", "days": 2}'), ("ping", "{}")),
        ),
        Example("<minimax:tool_call>\nnothing", "<minimax:tool_call>\nnothing"),
    ),
)

_STEP = ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")
_STEP_BEGIN = "<｜tool_call_begin｜>function<｜tool_sep｜>"

STEP3 = ToolFormat(
    name="step3",
    form=Tagged(
        before=(SPACE, '<steptml:invoke name="'),
        after=('">',),
        key=('<steptml:parameter name="', '">'),
        value=("", "</steptml:parameter>"),
        close="</steptml:invoke>",
        end=(SPACE, Maybe("<｜tool_call_end｜>")),
    ),
    opens=(_STEP_BEGIN,),
    section=_STEP,
    template_marks=("steptml:invoke",),
    examples=(
        Example(
            f'{_STEP[0]}{_STEP_BEGIN}<steptml:invoke name="get_weather"><steptml:parameter name="city">a < b'
            f"</steptml:parameter></steptml:invoke><｜tool_call_end｜>{_STEP[1]}",
            calls=(("get_weather", '{"city": "a < b"}'),),
        ),
    ),
)

_DSML = "｜DSML｜"

DEEPSEEK_V32 = ToolFormat(
    name="deepseekv32",
    aliases=("deepseek_v32",),
    form=Tagged(
        after=('">',),
        key=(f'<{_DSML}parameter name="', '"'),
        kinds=(' string="true">', ' string="false">'),
        value=("", f"</{_DSML}parameter>"),
        close=f"</{_DSML}invoke>",
    ),
    opens=(f'<{_DSML}invoke name="',),
    section=(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"),
    template_marks=(_DSML, "function_calls"),
    examples=(
        Example(
            f'Hm.\n\n<{_DSML}function_calls>\n<{_DSML}invoke name="get_weather">\n'
            f'<{_DSML}parameter name="city" string="true">Köln</{_DSML}parameter>\n'
            f'<{_DSML}parameter name="more" string="false">[1, "x"]</{_DSML}parameter>\n'
            f'<{_DSML}parameter name="note" string="true">[1]</{_DSML}parameter>\n'
            f'</{_DSML}invoke>\n<{_DSML}invoke name="ping">\n</{_DSML}invoke>\n</{_DSML}function_calls>',
            "Hm.",
            (("get_weather", '{"city": "Köln", "more": [1, "x"], "note": "[1]"}'), ("ping", "{}")),
        ),
    ),
)
