"""The detokenizer process: a synchronous loop from the scheduler's messages to the entry's."""

from __future__ import annotations

import gc
import logging

from millstream.checkpoint.locate import configured_source
from millstream.config import ChildConfig
from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.ipc.address import socket_address
from millstream.ipc.channel import PullChannel, SenderGone
from millstream.ipc.control import ControlLink
from millstream.ipc.entries import EntryChannels
from millstream.ipc.pulse import Pulse
from millstream.messages import Ready, ToDetokenizer
from millstream.observe.ledger import Ledger
from millstream.observe.log import heed
from millstream.observe.tally import Tally
from millstream.text.tokenizer import load_configured_tokenizer

log = logging.getLogger(__name__)


def run(config: ChildConfig, control: ControlLink) -> None:
    """Load the tokenizer, report READY, and work until told to stop.

    Raises:
        StartupError: the tokenizer cannot be loaded.
        PeerGone: the supervisor is gone.
    """
    inbox = PullChannel(socket_address(config.socket_dir, "detokenizer"), ToDetokenizer)
    to_entries = EntryChannels(config.socket_dir, config.name)
    tokenizer = load_configured_tokenizer(config.server, configured_source(config.server))
    manager = DetokenizerManager(
        tokenizer=tokenizer,
        to_entry=to_entries,
        max_states=config.server.max_detokenizer_states,
        ledger=Ledger("detokenizer", strict=config.server.strict_ledger),
        tally=Tally("detokenizer", control.note),
    )
    inbox.watch(control.fileno())
    gc.collect()
    gc.freeze()  # what is loaded stays: the collector need not walk it between two steps
    control.send(Ready(process="detokenizer"))
    pulse = Pulse(control)
    pulse.start()
    try:
        _loop(manager, inbox, control, pulse)
    finally:
        pulse.stop()
        inbox.close()
        to_entries.close()


def _loop(manager: DetokenizerManager, inbox: PullChannel, control: ControlLink, pulse: Pulse) -> None:
    while True:
        pulse.idle()
        messages, is_alerted = inbox.receive(None)
        pulse.work()
        for message in messages:
            try:
                if isinstance(message, SenderGone):
                    manager.scheduler_gone()
                else:
                    manager.handle(message)
            except Exception:
                log.exception("a message from the scheduler could not be handled")
        if is_alerted and heed(control.receive()):
            return
