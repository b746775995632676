"""All measures of the server as it is now, whichever entry worker was asked: for /metrics.

Every process that works must answer, and must be the one the supervisor speaks of: without its part, or with that of its
successor, a count would go back. What is gone the supervisor remembers, as it was last told.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

from millstream import __version__
from millstream.entry.service import Service
from millstream.errors import EngineDeadError
from millstream.ipc.address import entry_name
from millstream.messages import Measures
from millstream.messages.measures import Sample
from millstream.observe import families
from millstream.observe.processes import usage_of
from millstream.observe.tally import sample

WORKING = ("READY", "DRAINING")
ENGINE = ("scheduler", "detokenizer")


async def all_measures(service: Service) -> list[Measures]:
    """Of every process, those that are gone, and the system.

    Raises:
        EngineDeadError: a process does not answer.
    """
    processes, gone = service.processes, service.lasting_measures
    manager = service.started
    if manager is None:
        return [*_all_of([service.measures()]), *gone, _of_system(service)]
    found: list[Measures] = []
    working = [name for name in ENGINE if name in processes and processes[name].state in WORKING]
    if len(working) == len(ENGINE):
        found += (await manager.questions.stats(metrics=True)).measures or []
        expected = {name: processes[name].pid for name in ENGINE}
    else:
        # they are asked as one: what lives of them has no part this time, nor has what is remembered of its like
        expected = {}
        gone = [each for each in gone if each.process not in working]

    async def ask(number: int) -> Measures | None:
        return (await manager.questions.worker(service.to_worker(number), metrics=True)).measures

    if {each.process: each.pid for each in found} != expected:
        raise EngineDeadError("A process was replaced just now.")
    found += _all_of([*await asyncio.gather(*map(ask, service.other_workers)), service.measures()])
    return [*found, *gone, _of_system(service)]


def _all_of(found: Sequence[Measures | None]) -> list[Measures]:
    """What each process told.

    Raises:
        EngineDeadError: one could not.
    """
    told = [each for each in found if each is not None]
    if len(told) < len(found):
        raise EngineDeadError("The supervisor does not keep up.")
    return told


def _of_system(service: Service) -> Measures:
    """What the system says of the processes, and what runs."""
    return Measures("system", os.getpid(), list(_samples(service)), [])


def _samples(service: Service) -> Iterator[Sample]:
    pids = {name: process.pid for name, process in service.processes.items()} or {entry_name(service.entry): os.getpid()}
    for name, process in service.processes.items():
        yield sample(families.UP, process.state in WORKING, name)
    for name, pid in {"supervisor": os.getppid(), **pids}.items():
        if (usage := usage_of(pid)) is not None:
            yield sample(families.CPU, usage.cpu_s, name)
            yield sample(families.MEMORY, usage.resident_bytes, name)
    engine = None if service.started is None else service.started.engine
    yield sample(families.BUILD, 1, __version__, "" if engine is None else engine.executor, model_name(service))
    if engine is not None:
        yield sample(families.KV_CACHE, 1, str(engine.page_size), str(engine.num_pages))


def model_name(service: Service) -> str:
    """The first name of the served model."""
    return next(iter(service.config.served_model_name), "")
