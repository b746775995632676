"""What the ledger costs a request: the calls that one streamed request makes in each process, and nothing else.

python benchmarks/front/ledger.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from millstream.messages import LedgerQuery
from millstream.observe.ledger import Account, Ledger

REQUESTS = 20_000
ROUNDS = 7
LIVE = 256  # other requests that are in the books meanwhile
PAGES = 20  # grown one by one: 320 tokens


def entry(ledger: Ledger) -> None:
    """A streamed request of one choice."""
    state, call = ledger.open("r"), ledger.open("r")
    call.acquire("generation")
    call.acquire("reader")
    state.acquire("state")
    call.acquire("stream", measure=int)
    state.release("state", "stop")
    call.release("generation", "stop")
    call.release("stream", "done")
    call.release("reader", "done")
    call.settle("done")
    state.settle("stop")


def scheduler(ledger: Ledger) -> None:
    """A request that grows page by page and shares its prefix."""
    account = ledger.open("r")
    account.acquire("waiting")
    account.release("waiting", "admitted")
    account.acquire("prefix_pin")
    account.acquire("running")
    for _ in range(PAGES):
        account.acquire("pages")
    account.release("running", "stop")
    account.release("pages", "shared", 5)
    account.release("pages", "stop")
    account.release("prefix_pin", "stop")
    account.settle("stop")


def detokenizer(ledger: Ledger) -> None:
    """A decode state."""
    account = ledger.open("r")
    account.acquire("decode_status")
    account.release("decode_status", "stop")
    account.settle("stop")


def busy_ledger() -> tuple[Ledger, list[Account]]:
    """One with other requests in it."""
    ledger = Ledger("bench", strict=True)
    others = [ledger.open(f"other-{number}") for number in range(LIVE)]
    for account in others:
        account.acquire("state")
        account.acquire("pages", 3)
    return ledger, others


def microseconds(work: Callable[[Ledger], object], count: int) -> float:
    """Median CPU time of one call, over several rounds."""
    ledger, _ = busy_ledger()
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            work(ledger)
        rounds.append((time.process_time() - start) / count * 1e6)
    return statistics.median(rounds)


def main() -> None:
    """Print a line for each process, and what looking costs."""
    for work in (entry, scheduler, detokenizer):
        print(f"{work.__name__:12} {microseconds(work, REQUESTS):6.2f} us a request")
    print(f"{'reconcile':12} {microseconds(Ledger.reconcile, 200):6.1f} us with {LIVE} requests live")
    print(f"{'book':12} {microseconds(lambda ledger: ledger.book(LedgerQuery()), 200):6.1f} us with {LIVE} requests live")


if __name__ == "__main__":
    main()
