"""Channels of one process: order, ownership, waiting, and what a fault costs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from millstream.engine.channels import Inbox, LoopChannel
from millstream.messages import AbortReq, AdmissionOutput, ToEntry, ToScheduler


def test_messages_come_in_order_and_are_the_receivers_own() -> None:
    inbox = Inbox(ToScheduler)
    sent = [AbortReq(f"r{number}") for number in range(5)]
    for message in sent:
        inbox.send(message)
    received = inbox.receive(0)
    assert received == sent
    assert all(mine is not theirs for mine, theirs in zip(sent, received, strict=True))
    assert inbox.receive(0) == []


def test_a_receiver_that_waits_wakes_for_a_message_and_for_the_end() -> None:
    inbox = Inbox(ToScheduler)
    taken: list[list[Any] | None] = []
    has_taken = threading.Semaphore(0)

    def receive() -> None:
        while not taken or taken[-1] is not None:
            taken.append(inbox.receive(None))
            has_taken.release()

    thread = threading.Thread(target=receive)
    thread.start()
    inbox.send(AbortReq("r"))
    has_taken.acquire()
    inbox.close()
    thread.join()
    assert taken == [[AbortReq("r")], None]


def test_a_closed_inbox_says_so_whatever_is_in_it() -> None:
    inbox = Inbox(ToScheduler)
    inbox.send(AbortReq("r"))
    inbox.close()
    assert inbox.receive(0) is None
    assert inbox.receive(None) is None


def test_a_message_that_cannot_be_handled_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Any] = []

    async def scenario() -> None:
        has_all = asyncio.Event()

        def take(message: AdmissionOutput) -> None:
            if message.accepted == [2]:
                raise ValueError("not this one")
            taken.append(message.accepted)
            if message.accepted == [4]:
                has_all.set()

        channel = LoopChannel(ToEntry, asyncio.get_running_loop(), take)
        sender = threading.Thread(target=lambda: [channel.send(AdmissionOutput(accepted=[number])) for number in range(5)])
        sender.start()
        await has_all.wait()
        sender.join()

    asyncio.run(scenario())
    assert taken == [[0], [1], [3], [4]]
    assert "AdmissionOutput could not be handled" in caplog.text
