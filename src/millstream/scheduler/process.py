"""The scheduler process: loads the executor, then loops over messages and steps until it is told to stop.

Idle, it waits in one poll on its inbox and the control link; busy, it takes what has arrived between two steps and never waits.
"""

from __future__ import annotations

import gc
import logging

from millstream.checkpoint.locate import configured_source
from millstream.config import ChildConfig
from millstream.execution.registry import load_executor
from millstream.ipc.address import entry_number, socket_address
from millstream.ipc.channel import PullChannel, PushChannel, SenderGone
from millstream.ipc.control import ControlLink
from millstream.ipc.entries import EntryChannels
from millstream.ipc.pulse import Pulse
from millstream.messages import Ready, ToScheduler
from millstream.observe.log import heed
from millstream.observe.tally import Tally
from millstream.scheduler.build import build_scheduler, engine_info
from millstream.scheduler.meter import Meter
from millstream.scheduler.scheduler import Scheduler
from millstream.text.tokenizer import load_configured_tokenizer

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
        source = configured_source(config.server)
        tokenizer, executor = load_configured_tokenizer(config.server, source), load_executor(config.server, source)
        try:
            engine = engine_info(config.server, executor, tokenizer)
            scheduler = build_scheduler(
                config.server,
                engine,
                executor=executor,
                tokenizer=tokenizer,
                to_detokenizer=to_detokenizer,
                to_entry=to_entries,
                meter=Meter(Tally("scheduler", control.note)),
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
        if is_alerted and heed(control.receive()):
            scheduler.close()
            return
        scheduler.step()
        pulse.progress += scheduler.got_on
