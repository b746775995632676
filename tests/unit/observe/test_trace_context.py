"""What a client says of its trace is taken where it is exactly right, and never breaks its request."""

from __future__ import annotations

import pytest

from millstream.observe.trace_context import trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # flags that are not known yet
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_valid_header_makes_a_child_of_its_span(header: str, is_sampled: bool) -> None:
    context = trace_context(header.encode())
    assert (context.trace_id, context.parent_id, context.is_sampled) == (TRACE, SPAN, is_sampled)
    assert context.span_id not in (SPAN, "0" * 16)
    assert trace_context(context.header.encode()).parent_id == context.span_id


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        f"00-{TRACE}-{SPAN}-01-more".encode(),  # this version has no more
        f"ff-{TRACE}-{SPAN}-01".encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE.upper()}-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}".encode(),
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01".encode(),
        b"\xff" * 55,
    ],
)
def test_any_other_begins_a_trace(header: bytes | None) -> None:
    context, other = trace_context(header), trace_context(header)
    assert context.trace_id not in (TRACE, "0" * 32, other.trace_id)
    assert (len(context.trace_id), len(context.span_id)) == (32, 16)
    assert (context.parent_id, context.is_sampled) == ("", True)
