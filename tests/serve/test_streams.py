"""How an answer's events are written: what is ready at the same time goes out together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from folovllm.serving.openai.errors import APIError
from folovllm.serving.openai.streams import Burst, EventStream

A, B, USAGE = {"a": 1}, {"b": 2}, {"usage": 3}


def written(*bursts: Burst | Exception) -> list[tuple[bytes, bool]]:
    """(body, whether more comes) of each write after the head."""
    sent: list[Any] = []

    async def made() -> AsyncGenerator[Burst, None]:
        for burst in bursts:
            if isinstance(burst, Exception):
                raise burst
            yield burst

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(EventStream(made())({"type": "http", "path": "/"}, receive, send))
    assert sent[0]["type"] == "http.response.start"
    return [(message["body"], message["more_body"]) for message in sent[1:]]


def test_events_of_one_burst_are_one_write_and_the_last_one_ends_the_answer() -> None:
    assert written(Burst.of([A, B]), Burst.of([A, USAGE], is_last=True)) == [
        (b'data: {"a":1}\n\ndata: {"b":2}\n\n', True),
        (b'data: {"a":1}\n\ndata: {"usage":3}\n\ndata: [DONE]\n\n', False),
    ]


def test_a_stream_that_ends_without_a_last_burst_is_ended() -> None:
    assert written(Burst.of([A])) == [(b'data: {"a":1}\n\n', True), (b"data: [DONE]\n\n", False)]


def test_an_error_after_the_first_event_is_the_last_event() -> None:
    first, (body, more) = written(Burst.of([A]), APIError(500, "it failed"))
    assert first == (b'data: {"a":1}\n\n', True)
    assert b"it failed" in body
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    assert not more
