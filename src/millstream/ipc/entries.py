"""EntryChannels: the ways from another process to each entry worker, by the worker's number. Owned by the sending process."""

from __future__ import annotations

from pathlib import Path

from millstream.ipc.address import entry_name, socket_address
from millstream.ipc.channel import PushChannel


class EntryChannels:
    """A `PushChannel` to each worker that something was sent to. `sender` is the name of the process that sends.

    Those of workers that are gone are forgotten when another comes, which may have taken the place of one.
    """

    def __init__(self, socket_dir: Path, sender: str) -> None:
        self._socket_dir = socket_dir
        self._sender = sender
        self._channels: dict[int, PushChannel] = {}

    def __call__(self, number: int) -> PushChannel:
        """The channel to the worker with this number."""
        channel = self._channels.get(number)
        if channel is None:
            for each in [each for each, known in self._channels.items() if known.is_over]:
                self.forget(each)
            channel = PushChannel(socket_address(self._socket_dir, entry_name(number)), self._sender)
            self._channels[number] = channel
        return channel

    def forget(self, number: int) -> None:
        """The worker is gone, and its number is never used again."""
        if (channel := self._channels.pop(number, None)) is not None:
            channel.close()

    def close(self) -> None:
        """Close all of them."""
        for number in list(self._channels):
            self.forget(number)
