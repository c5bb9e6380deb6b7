"""Clients that cost little: a process that sends many requests at once, and says how long all the answers took.

    python -m workshop.bench.serve_client        a line of JSON comes in for each load, and one goes out

It only looks for the end of each answer while the clock runs, and reads them afterwards. So what is measured is the
server: a client that makes objects of every event takes as much of the machine as the server does.

vLLM: none
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

_DONE = b"data: [DONE]\n\n"


class _Answer(asyncio.Protocol):
    """One request, under HTTP/1.0: the answer's body comes as it is, and ends with the connection."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(None)

    def num_tokens(self) -> int:
        """Raises RuntimeError: it is no whole answer."""
        head, _, body = b"".join(self.received).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise RuntimeError(f"the server answered {(head.splitlines() or [b''])[0]!r}: {body[:300]!r}")
        if body.endswith(_DONE):
            body = body.removesuffix(_DONE).rpartition(b"data: ")[2]  # the last event has the usage
        answer = json.loads(body)
        if not answer.get("usage"):
            raise RuntimeError(f"the answer tells no usage: {body[:300]!r}")
        return int(answer["usage"]["completion_tokens"])

    def num_pieces(self) -> int:
        return b"".join(self.received).count(b"data: ")


async def send_all(host: str, port: int, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """{"seconds", "tokens", "events"}: from the first byte that is sent to the end of the last answer. The connections
    are open before the clock runs."""
    loop = asyncio.get_running_loop()
    answers = [(await loop.create_connection(_Answer, host, port))[1] for _ in bodies]
    requests = []
    for body in bodies:
        data = json.dumps(body).encode()
        lines = ["POST /v1/completions HTTP/1.0", "Content-Type: application/json", f"Content-Length: {len(data)}"]
        requests.append("\r\n".join([*lines, "", ""]).encode() + data)
    began = time.perf_counter()
    for answer, request in zip(answers, requests, strict=True):
        answer.transport.write(request)
    await asyncio.gather(*(answer.ended for answer in answers))
    seconds = time.perf_counter() - began
    events = sum(answer.num_pieces() for answer in answers)
    return {"seconds": seconds, "tokens": sum(answer.num_tokens() for answer in answers), "events": events}


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        try:
            found = asyncio.run(send_all(job["host"], job["port"], job["bodies"]))
        except (OSError, RuntimeError, ValueError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
