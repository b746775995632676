"""The scheduler process: loads the executor, then loops over messages and steps until it is told to stop.

Idle, it waits in one poll on its inbox and the control link; busy, it takes what has arrived between two steps and never waits.
"""

from __future__ import annotations

import gc
import logging

from millstream.checkpoint.locate import configured_source
from millstream.config import ChildConfig, ServerConfig
from millstream.execution.interface import Executor
from millstream.execution.registry import load_executor
from millstream.ipc.address import entry_number, socket_address
from millstream.ipc.channel import PullChannel, PushChannel, SenderGone
from millstream.ipc.control import ControlLink
from millstream.ipc.entries import EntryChannels
from millstream.ipc.pulse import Pulse
from millstream.kv.pool import KVPool
from millstream.messages import EngineInfo, Ready, Shutdown, ToScheduler
from millstream.observe.ledger import Ledger
from millstream.scheduler.admission import Limits
from millstream.scheduler.order import Order
from millstream.scheduler.scheduler import Scheduler
from millstream.scheduler.speculation import SpeculationOptions
from millstream.text.tokenizer import Tokenizer, load_configured_tokenizer

log = logging.getLogger(__name__)


def run(config: ChildConfig, control: ControlLink) -> None:
    """Load, report READY, and work until told to stop.

    Raises:
        StartupError: the model or the script cannot be loaded.
        PeerGone: the supervisor is gone.
    """
    inbox = PullChannel(socket_address(config.socket_dir, "scheduler"), ToScheduler)
    to_detokenizer = PushChannel(socket_address(config.socket_dir, "detokenizer"), config.name)
    to_entries = EntryChannels(config.socket_dir, config.name)
    pulse = Pulse(control)
    try:
        tokenizer, executor = _load(config.server)
        try:
            engine = _engine_info(config.server, executor, tokenizer)
            scheduler = Scheduler(
                executor=executor,
                tokenizer=tokenizer,
                pool=KVPool(
                    num_pages=engine.num_pages,
                    page_size=engine.page_size,
                ),
                share_prefixes=not config.server.disable_radix_cache,
                order=Order(config.server.schedule_policy, oldest_every=config.server.oldest_first_every),
                eos_token_ids=frozenset(engine.eos_token_ids),
                limits=Limits(
                    max_running_requests=config.server.max_running_requests,
                    max_queued_requests=config.server.max_queued_requests,
                    max_queued_tokens=config.server.queued_tokens_limit(engine.context_length),
                    chunked_prefill_size=config.server.chunked_prefill_size,
                    context_length=engine.context_length,
                    vocab_size=engine.vocab_size,
                    hidden_size=engine.hidden_size,
                    target_itl_s=config.server.target_itl_ms / 1000 or None,
                ),
                to_detokenizer=to_detokenizer,
                to_entry=to_entries,
                speculation=_speculation(config.server),
                ledger=Ledger("scheduler", strict=config.server.strict_ledger),
            )
            gc.collect()
            gc.freeze()  # what is loaded stays: the collector need not walk it between two steps
            control.send(Ready(process="scheduler", engine=engine))
            pulse.start()
            _loop(scheduler, inbox, control, to_entries, pulse)
        finally:
            pulse.stop()
            executor.close()
    finally:
        inbox.close()
        to_detokenizer.close()
        to_entries.close()


def _load(server: ServerConfig) -> tuple[Tokenizer, Executor]:
    source = configured_source(server)
    return load_configured_tokenizer(server, source), load_executor(server, source)


def _speculation(server: ServerConfig) -> SpeculationOptions:
    if server.speculative_algorithm is None:
        return SpeculationOptions()
    return SpeculationOptions(
        num_draft_tokens=server.speculative_num_draft_tokens,
        shortest_match=server.speculative_ngram_min_match_window_size,
        longest_match=server.speculative_ngram_max_match_window_size,
        max_batch_size=server.speculative_disable_by_batch_size,
    )


def _engine_info(server: ServerConfig, executor: Executor, tokenizer: Tokenizer) -> EngineInfo:
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
    )


def _loop(scheduler: Scheduler, inbox: PullChannel, control: ControlLink, to_entries: EntryChannels, pulse: Pulse) -> None:
    inbox.watch(control.fileno())
    while True:
        wait_s = scheduler.wait_s
        if wait_s == 0:
            messages, is_alerted = inbox.receive(0)
        else:
            pulse.idle()
            messages, is_alerted = inbox.receive(wait_s)
            pulse.work()
        for message in messages:
            if not isinstance(message, SenderGone):
                scheduler.handle(message)
            elif (entry := entry_number(message.sender)) is not None:
                if num_aborted := scheduler.entry_gone(entry):
                    log.warning("%s is gone; its %d requests are aborted", message.sender, num_aborted)
                to_entries.forget(entry)
        if is_alerted and any(isinstance(message, Shutdown) for message in control.receive()):
            scheduler.close()
            return
        scheduler.step()
        pulse.progress += scheduler.got_on
