"""Server-sent events, and answers that a client may no longer wait for.

A client that goes away cancels what is computed for it: the engine drops its requests before the next step. A client
that reads slowly stops the pump at `send`, which waits for the socket; meanwhile the engine's newest output takes the
place of the one before, so that nothing piles up.

vLLM: entrypoints/serve/utils/api_utils.py (with_cancellation)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from folovllm.serving.openai.background import Background, Check, at_once
from folovllm.serving.openai.errors import CLIENT_CLOSED_REQUEST, APIError, failed, is_anthropic
from folovllm.serving.openai.formatting import encoded

_T = TypeVar("_T")
LARGE = 1000
"""Values in a burst, a few microseconds each."""


class ClientGoneError(APIError):
    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED_REQUEST, "the client has gone")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """What `work` returns. Raises ClientGoneError, having cancelled it, when the client goes away before.

    It runs here, not in another task: what need not wait is done before another request gets its turn."""
    here = cast("asyncio.Task[Any]", asyncio.current_task())

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        here.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if watching.done() and here.uncancel() == 0:  # nobody else has cancelled it
            raise ClientGoneError from None
        raise
    finally:
        watching.cancel()


async def merged(streams: Sequence[AsyncGenerator[_T, None]]) -> AsyncGenerator[_T, None]:
    """What comes of all, in one row. The queue has one place: a slow reader holds up these streams only.

    vLLM: utils/async_utils.py (merge_async_iterators)"""
    queue: asyncio.Queue[_T | BaseException | None] = asyncio.Queue(maxsize=1)

    async def pump(stream: AsyncGenerator[_T, None]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await queue.put(item)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    left = len(tasks)
    try:
        while left:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class Burst:
    """Events that are ready at the same time. They go out in one write: each write is a call to the system, and at each
    one the engine's steps get in between."""

    data: bytes
    is_last: bool = False

    @classmethod
    def of(cls, events: list[dict[str, Any]], is_last: bool = False, check: Check = at_once) -> Burst:
        """An event that has a type is called so."""
        lines = []
        for event in events:
            name = b"event: %b\n" % event["type"].encode() if "type" in event else b""
            lines.append(b"%bdata: %b\n\n" % (name, encoded(event, check)))
        return cls(b"".join(lines), is_last)


async def made(make: Callable[[Check], _T], background: Background, size: int) -> _T:
    """An answer or a burst that is written at once, or beside the event loop where it would keep that for milliseconds:
    as one for a slow reader does, or one with the log-probabilities of a prompt."""
    return make(at_once) if size < LARGE else await background.run(make)


class EventStream(Response):
    """`bursts` as server-sent events, and [DONE] at the end, except for Anthropic's clients.

    Nothing is sent before the first of them, so that a request which is refused gets its status. An error
    after that comes as an event.
    """

    media_type = "text/event-stream"

    def __init__(self, bursts: AsyncGenerator[Burst, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.bursts = bursts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGoneError):
            await unless_gone(receive, self._pump(scope, receive, send))

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.bursts) as bursts:
            try:
                burst = await anext(bursts, _END)
            except APIError as error:
                await error.response(scope)(scope, receive, send)
                return
            headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                while not burst.is_last:
                    await send({"type": "http.response.body", "body": burst.data, "more_body": True})
                    burst = await anext(bursts, _END)
            except OSError:
                return  # the socket is closed
            except Exception as error:
                burst = Burst.of([failed(error).body(scope)], is_last=True)
            end = b"" if is_anthropic(scope) else b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": burst.data + end, "more_body": False})


_END = Burst(b"", is_last=True)
