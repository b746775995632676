"""Priority: whether a request may name one, and which. Checked by the adapters; the scheduler takes what it gets."""

from __future__ import annotations

from millstream.entry.fields import refusal
from millstream.errors import RequestError

LEAST, MOST = -(2**63), 2**63 - 1


def check_priority(priority: int, *, is_enabled: bool) -> None:
    """Check the priority that a client gave, 0 where it gave none.

    Raises:
        RequestError: the server has no priorities, or it has more than 64 bits.
    """
    if priority and not is_enabled:
        raise refusal("priority", "the server runs without `--enable-priority-scheduling`")
    if not LEAST <= priority <= MOST:
        raise RequestError(f"priority is {priority}; it must be an integer of 64 bits.", param="priority")
