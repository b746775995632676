"""From options and a loaded executor to a scheduler. Called by the scheduler process, and by an `Engine` in one process."""

from __future__ import annotations

from collections.abc import Callable

from millstream.config import ServerConfig
from millstream.execution.interface import Executor
from millstream.grammar.matcher import GrammarCompiler
from millstream.grammar.vocabulary import vocabulary_of
from millstream.ipc.channel import Sender
from millstream.kv.pool import SHOWN_TOKENS, KVPool
from millstream.messages import EngineInfo
from millstream.observe.ledger import Ledger
from millstream.scheduler.admission import Limits
from millstream.scheduler.meter import Meter
from millstream.scheduler.order import Order
from millstream.scheduler.output import ToDetokenizer
from millstream.scheduler.scheduler import Scheduler
from millstream.scheduler.speculation import SpeculationOptions
from millstream.text.tokenizer import Tokenizer


def engine_info(server: ServerConfig, executor: Executor, tokenizer: Tokenizer) -> EngineInfo:
    """What the executor and the options come to, for the entry to check requests against."""
    capabilities = executor.capabilities
    return EngineInfo(
        vocab_size=capabilities.vocab_size,
        context_length=min(capabilities.context_length, capabilities.num_pages * capabilities.page_size),
        eos_token_ids=sorted(capabilities.eos_token_ids | tokenizer.eos_token_ids),
        num_pages=capabilities.num_pages,
        page_size=capabilities.page_size,
        max_running_requests=server.max_running_requests,
        executor=capabilities.executor,
        hidden_size=capabilities.hidden_size,
        has_logprobs=capabilities.has_logprobs,
        has_grammars=capabilities.has_masks and tokenizer.has_byte_table,
    )


def build_scheduler(
    server: ServerConfig,
    engine: EngineInfo,
    *,
    executor: Executor,
    tokenizer: Tokenizer,
    to_detokenizer: ToDetokenizer,
    to_entry: Callable[[int], Sender],
    meter: Meter | None = None,
) -> Scheduler:
    """A scheduler of `executor` with empty books, which counts in `meter`."""
    return Scheduler(
        executor=executor,
        tokenizer=tokenizer,
        pool=KVPool(
            num_pages=engine.num_pages,
            page_size=engine.page_size,
            num_shown=0 if server.hide_timeline_text else SHOWN_TOKENS,
        ),
        share_prefixes=not server.disable_radix_cache,
        order=Order(server.schedule_policy, oldest_every=server.oldest_first_every),
        eos_token_ids=frozenset(engine.eos_token_ids),
        limits=Limits(
            max_running_requests=server.max_running_requests,
            max_queued_requests=server.max_queued_requests,
            max_queued_tokens=server.queued_tokens_limit(engine.context_length),
            chunked_prefill_size=server.chunked_prefill_size,
            context_length=engine.context_length,
            vocab_size=engine.vocab_size,
            hidden_size=engine.hidden_size,
            has_grammars=engine.has_grammars,
            target_itl_s=server.target_itl_ms / 1000 or None,
        ),
        to_detokenizer=to_detokenizer,
        to_entry=to_entry,
        speculation=_speculation(server),
        # at load, and not with the first grammar: it takes a quarter of a second
        grammars=GrammarCompiler(vocabulary_of(tokenizer, engine.eos_token_ids)) if engine.has_grammars else None,
        jumps_forward=not server.disable_jump_forward,
        ledger=Ledger("scheduler", strict=server.strict_ledger),
        meter=meter,
    )


def _speculation(server: ServerConfig) -> SpeculationOptions:
    if server.speculative_algorithm is None:
        return SpeculationOptions()
    return SpeculationOptions(
        num_draft_tokens=server.speculative_num_draft_tokens,
        shortest_match=server.speculative_ngram_min_match_window_size,
        longest_match=server.speculative_ngram_max_match_window_size,
        max_batch_size=server.speculative_disable_by_batch_size,
    )
