"""One end of the socket between rank 0 and another rank, and the process behind it.

    a message   8 bytes: how long it is · a JSON object, while the ranks find one another; then int64 numbers

A process that ends closes its sockets, however it ends: a read at the other end says so at once.

vLLM: distributed/device_communicators/shm_broadcast.py (MessageQueue)
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch


class Process(Protocol):
    """As subprocess.Popen has it."""

    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Link:
    """process: the one at the other end, where it was started here."""

    def __init__(self, connection: socket.socket, process: Process | None = None) -> None:
        self.connection, self.process = connection, process
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, **message: Any) -> None:
        self._send(json.dumps(message).encode())

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Raises EOFError: the other side has gone. TimeoutError: it says nothing."""
        self.connection.settimeout(seconds)
        try:
            message: dict[str, Any] = json.loads(self._receive())
        finally:
            self.connection.settimeout(None)
        return message

    def send_numbers(self, numbers: Sequence[int]) -> None:
        self._send(np.array(numbers, np.int64).tobytes())

    def receive_numbers(self) -> list[int]:
        numbers: list[int] = np.frombuffer(self._receive(), np.int64).tolist()
        return numbers

    def send_tensor(self, x: torch.Tensor) -> None:
        """Its bytes, with no word of their number."""
        self.connection.sendall(_bytes_of(x.contiguous()))

    def receive_into(self, x: torch.Tensor) -> None:
        self._fill(_bytes_of(x))

    def is_closed(self) -> bool:
        """Whether the other side has gone; what it said before may be unread."""
        asked = select.poll()
        asked.register(self.connection, select.POLLRDHUP)
        return bool(asked.poll(0))

    def last_words(self) -> str:
        """How the other side came to its end: by what it said, or by its process's status."""
        try:
            while True:
                if "error" in (message := self.receive(1.0)):
                    return f"failed: {message['error']}"
        except (OSError, EOFError, ValueError):
            pass
        try:
            status = None if self.process is None else self.process.wait(1.0)
        except Exception:  # it runs on without its socket
            status = None
        return "has gone" if status is None else f"has ended with status {status}"

    def close(self) -> None:
        """The other side's process ends, or is ended."""
        self.connection.close()
        if self.process is not None:
            try:
                self.process.wait(2.0)
            except Exception:  # of whatever kind of process: it does not end by itself
                self.process.kill()
                self.process.wait()

    def _send(self, body: bytes) -> None:
        self.connection.sendall(len(body).to_bytes(8, "little") + body)

    def _receive(self) -> bytearray:
        length = bytearray(8)
        self._fill(memoryview(length))
        body = bytearray(int.from_bytes(length, "little"))
        self._fill(memoryview(body))
        return body

    def _fill(self, view: memoryview) -> None:
        while view:
            try:
                count = self.connection.recv_into(view)
            except ConnectionError:
                count = 0
            if not count:
                raise EOFError("the other side has gone")
            view = view[count:]


def _bytes_of(x: torch.Tensor) -> memoryview:
    return memoryview(x.view(-1).view(torch.uint8).numpy())
