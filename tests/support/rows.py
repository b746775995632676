"""All rows of a sequence of batches, those in columns as full rows, for tests that ask what was said and not how."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.messages import BatchStrOutput, BatchTokenIDOutput, TextRow, TokenRow, Usage


def token_rows(batches: Iterable[BatchTokenIDOutput]) -> list[TokenRow]:
    """The rows of `batches`, in order; rows in columns with the counts they imply."""
    rids: dict[int, str] = {}
    usages: dict[str, Usage] = {}
    rows: list[TokenRow] = []
    for batch in batches:
        rids.update((options.slot, options.rid) for options in batch.opened)
        made = list(batch.rows)
        for columns in batch.columns:
            for slot, token_ids in columns.rows():
                last = usages[rids[slot]]
                usage = Usage(last.prompt_tokens, last.completion_tokens + len(token_ids), last.cached_tokens)
                made.append(TokenRow(rids[slot], token_ids, usage))
        assert len({row.rid for row in made}) == len(made)
        usages.update((row.rid, row.usage) for row in made)
        rows += made
    return rows


def text_rows(batches: Iterable[BatchStrOutput]) -> list[TextRow]:
    """The rows of `batches`, in order; rows in columns without counts."""
    rids: dict[int, str] = {}
    rows: list[TextRow] = []
    for batch in batches:
        rids.update((row.slot, row.rid) for row in batch.rows)
        rows += batch.rows
        for columns in batch.columns:
            rows += [TextRow(rids[slot], slot, text, token_ids, None) for slot, text, token_ids in columns.rows()]
    return rows
