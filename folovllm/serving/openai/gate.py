"""Admission control: requests come in until as many wait as may. vLLM: none"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from folovllm.engine.engine_client import EngineClient
from folovllm.serving.openai.errors import APIError


class Gate:
    """Lets requests in until as many wait as `max_queue` allows."""

    def __init__(self, llm: EngineClient, max_queue: int) -> None:
        self.llm, self.max_queue = llm, max_queue
        self.num_inside = 0  # prompts that were let in and have not ended
        self.draining = False

    def num_waiting(self, count: int = 0) -> int:
        """Requests that would wait, were `count` more let in. What has not reached the engine takes its free rows, if
        nothing waits there already."""
        load = self.llm.load()
        free = 0 if load.waiting else load.rows - load.running
        on_the_way = self.num_inside - load.running - load.waiting - load.swapped
        return load.waiting + max(0, on_the_way + count - free)

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Raises APIError: 503 while the server shuts down or without an engine, 429 where `count` more would have to
        wait too long, 400 where they always would."""
        if self.draining:
            raise shutting_down()
        if self.llm.is_closed:
            raise engine_dead()
        if count > (most := max(1, self.llm.load().rows + self.max_queue)):
            raise APIError(
                400,
                f"prompt must have at most {most} entries, got {count}: the batch and the queue hold no more; send "
                f"less, or serve with --max-queue {count}",
                param="prompt",
            )
        if self.num_waiting(count) > self.max_queue:
            raise APIError(
                429,
                f"{self.num_waiting()} requests wait, and the queue holds {self.max_queue}: try again",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        self.num_inside += count
        try:
            yield
        finally:
            self.num_inside -= count


def engine_dead() -> APIError:
    return APIError(503, "the engine has died: the server must be started again", code="engine_dead")


def shutting_down() -> APIError:
    return APIError(503, "the server is shutting down", headers={"Connection": "close"})
