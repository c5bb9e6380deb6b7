"""One end of the socket between rank 0 and another rank, and the process at the other end.

A process that ends closes its sockets, however it ends, and a read at the other end says so at once.

vLLM: distributed/device_communicators/shm_broadcast.py (MessageQueue)
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
from contextlib import suppress
from typing import Any

import torch

from folovllm.errors import EngineDeadError


class Link:
    """process: the one at the other end, where it was started here."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.connection, self.process = connection, process
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Any) -> None:
        """What JSON can say."""
        body = json.dumps(message).encode()
        self.connection.sendall(len(body).to_bytes(8, "little") + body)

    def receive(self, seconds: float | None = None) -> Any:
        """The next message. Raises EOFError: the other side has gone. TimeoutError: it says nothing."""
        self.connection.settimeout(seconds)
        length = self._fill(bytearray(8))
        return json.loads(self._fill(bytearray(int.from_bytes(length, "little"))))

    def hear(self, rank: int, seconds: float) -> Any:
        """receive(), from this rank. Raises EngineDeadError: nothing comes, or what comes says that it has failed."""
        try:
            if not isinstance(message := self.receive(seconds), dict) or "error" not in message:
                return message
            why = f"failed: {message['error']}"
        except TimeoutError:
            why = f"does not answer: nothing came for {seconds} s"
        except (EOFError, OSError):
            why = self.last_words()
        raise EngineDeadError(f"rank {rank} {why}")

    def send_tensor(self, x: torch.Tensor) -> None:
        self.connection.sendall(_bytes_of(x))

    def receive_into(self, x: torch.Tensor) -> None:
        self._fill(_bytes_of(x))

    def is_closed(self, seconds: float = 0.0) -> bool:
        """Whether the other side has gone, or goes within so many seconds. What it said before may be unread."""
        asked = select.poll()
        asked.register(self.connection, select.POLLRDHUP)
        return bool(asked.poll(1000 * seconds))

    def last_words(self) -> str:
        """How the other side came to its end: by what it said, or by its process's status."""
        with suppress(OSError, EOFError):
            while True:
                if isinstance(message := self.receive(1.0), dict) and "error" in message:
                    return f"failed: {message['error']}"
        with suppress(subprocess.TimeoutExpired):
            if self.process is not None:
                return f"has ended with status {self.process.wait(1.0)}"
        return "has gone"

    def close(self) -> None:
        """The other side's process ends by that, or is ended."""
        self.connection.close()
        if self.process is not None:
            try:
                self.process.wait(2.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _fill(self, buffer: bytearray | memoryview) -> bytearray | memoryview:
        view = memoryview(buffer)
        while view:
            try:
                count = self.connection.recv_into(view)
            except ConnectionError:
                count = 0
            if not count:
                raise EOFError("the other side has gone")
            view = view[count:]
        return buffer


def _bytes_of(x: torch.Tensor) -> memoryview:
    return memoryview(x.view(-1).view(torch.uint8).numpy())
