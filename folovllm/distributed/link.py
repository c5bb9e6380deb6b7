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
        """The next message. Raises EOFError, OSError: the other side has gone. TimeoutError: it says nothing."""
        self.connection.settimeout(seconds)
        length = bytearray(8)
        self._fill(memoryview(length))
        body = bytearray(int.from_bytes(length, "little"))
        self._fill(memoryview(body))
        return json.loads(body)

    def hear(self, rank: int, seconds: float) -> Any:
        """The next message of this rank. Raises EngineDeadError: none comes, or a text, which says how it failed."""
        try:
            message = self.receive(seconds)
        except TimeoutError:
            message = f"does not answer: nothing came for {seconds:g} s"
        except (EOFError, OSError):
            message = "has gone"
            with suppress(subprocess.TimeoutExpired):
                if self.process is not None:
                    message = f"has ended with status {self.process.wait(1.0)}"
        if isinstance(message, str):
            raise EngineDeadError(f"rank {rank} {message}; start the engine anew")
        return message

    def is_closed(self, seconds: float = 0.0) -> bool:
        """Whether the other side has gone, or goes within so many seconds. What it said before may be unread."""
        asked = select.poll()
        asked.register(self.connection, select.POLLRDHUP)
        return bool(asked.poll(1000 * seconds))

    def close(self) -> None:
        """The other side's process ends by that, or is ended."""
        self.connection.close()
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
            self.process.kill()
            self.process.wait()

    def send_tensor(self, x: torch.Tensor) -> None:
        self.connection.sendall(_bytes_of(x))

    def receive_into(self, x: torch.Tensor) -> None:
        self._fill(_bytes_of(x))

    def _fill(self, view: memoryview) -> None:
        while view:
            if not (count := self.connection.recv_into(view)):
                raise EOFError("the other side has gone")
            view = view[count:]


def _bytes_of(x: torch.Tensor) -> memoryview:
    return x.view(-1).view(torch.uint8).numpy().data
