"""The thread pool: every task runs once, no phase begins before the one before is done, whatever else has the cores."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_tasks", [1, 2, 7, 100])
def test_every_task_runs_once_after_all_of_the_phase_before(native: ModuleType, threads: int, num_tasks: int) -> None:
    pool = native.ThreadPool(threads)
    for work in (0, 10, 1000):
        assert pool.try_out(50, num_tasks, work) == (0, 0)


def test_steps_may_follow_each_other_at_once_and_differ_in_length(native: ModuleType) -> None:
    pool = native.ThreadPool(4)  # more threads than cores: some are asleep in every step, and wake in a later one
    for step in range(300):
        assert pool.try_out(1 + step % 40, 1 + step % 5, 5) == (0, 0)


def test_pools_come_and_go(native: ModuleType) -> None:
    for threads in (1, 2, 5) * 5:
        assert native.ThreadPool(threads).try_out(3, 3, 1) == (0, 0)


def test_a_step_without_tasks_in_a_phase_ends(native: ModuleType) -> None:
    assert native.ThreadPool(2).try_out(4, 0, 1) == (0, 0)


def test_threads_that_the_machine_does_not_have_are_an_error_and_no_crash(native: ModuleType) -> None:
    script = """
import resource
from millstream.execution.native._native import ThreadPool
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))  # no room for a thousand stacks
try:
    ThreadPool(1024)
except RuntimeError as error:
    print(error)
ThreadPool(2).try_out(3, 20, 10)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "1024 threads cannot be started: Resource temporarily unavailable")
