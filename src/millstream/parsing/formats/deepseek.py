"""DeepSeek: calls in a section; V3 and R1 fence the arguments, V3.1 does not."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import SPACE, Maybe, NamedJson
from millstream.parsing.stage import Example, ToolFormat

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_BEGIN, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

DEEPSEEK_V3 = ToolFormat(
    name="deepseekv3",
    aliases=("deepseek_v3", "deepseek-r1"),
    form=NamedJson(
        before=("function", _SEP),
        after=(SPACE, "```json", SPACE),
        end=(SPACE, Maybe("```"), SPACE, Maybe(_END)),
    ),
    opens=(_BEGIN,),
    section=_SECTION,
    template_marks=("tool▁calls▁begin", "```json"),
    written=(
        Writing(
            opening=_SECTION[0],
            begin=f"{_BEGIN}function{_SEP}",
            after_name="\n```json\n",
            end=f"\n```{_END}",
            between="\n",
            closing=_SECTION[1],
        ),
    ),
    examples=(
        Example(
            f'Ja. {_SECTION[0]}{_BEGIN}function{_SEP}get_weather\n```json\n{{"city": "Ulm"}}\n```{_END}\n'
            f"{_BEGIN}function{_SEP}ping\n```json\n{{}}\n```{_END}{_SECTION[1]}",
            "Ja.",
            (("get_weather", '{"city": "Ulm"}'), ("ping", "{}")),
        ),
        Example(f"{_SECTION[0]}nothing", f"{_SECTION[0]}nothing"),
    ),
)

DEEPSEEK_V31 = ToolFormat(
    name="deepseekv31",
    aliases=("deepseek_v31",),
    form=NamedJson(after=(_SEP, SPACE), end=(SPACE, Maybe(_END))),
    opens=(_BEGIN,),
    section=_SECTION,
    template_marks=("tool▁calls▁begin",),
    written=(Writing(opening=_SECTION[0], begin=_BEGIN, after_name=_SEP, end=_END, closing=_SECTION[1]),),
    examples=(
        Example(
            f'Ja.{_SECTION[0]}{_BEGIN}get_weather{_SEP}{{"city": "Ulm"}}{_END}{_BEGIN}ping{_SEP}{{}}{_END}{_SECTION[1]}',
            "Ja.",
            (("get_weather", '{"city": "Ulm"}'), ("ping", "{}")),
        ),
    ),
)
