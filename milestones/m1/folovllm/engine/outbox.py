"""Outputs on their way to the caller that asked: one caller may step the engine, and a step produces for others too.

Each open stream and each running generate() takes the outputs of its own requests only; LLMEngine.step() returns
everything that no stream has claimed. The rest stays here until its caller takes it, errors included.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Callable, Set

from folovllm.outputs import RequestOutput


class Outbox:
    """Outputs and failures, in the order in which they came."""

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._failures: dict[str, Exception] = {}
        self._claimed: set[str] = set()

    def put(self, outputs: list[RequestOutput]) -> None:
        self._outputs += outputs

    def put_back(self, outputs: list[RequestOutput]) -> None:
        """Outputs that were taken and not given out."""
        self._outputs[:0] = outputs

    def fail(self, request_id: str, error: Exception) -> None:
        """The request ended in `error`, which is raised when its outputs are next asked for."""
        self._failures[request_id] = error

    def claim(self, request_id: str) -> None:
        """From here on, take_unclaimed() leaves this request's outputs alone."""
        self._claimed.add(request_id)

    def release(self, request_id: str) -> None:
        self._claimed.discard(request_id)

    def drop(self, request_id: str) -> None:
        """Forget outputs and errors of a request that have not been fetched."""
        self._outputs = [output for output in self._outputs if output.request_id != request_id]
        self._failures.pop(request_id, None)

    def holds(self, request_ids: Set[str]) -> bool:
        """Whether anything of these requests waits to be fetched."""
        return any(output.request_id in request_ids for output in self._outputs) or bool(
            self._failures.keys() & request_ids
        )

    def holds_unclaimed(self) -> bool:
        waiting = {output.request_id for output in self._outputs} | self._failures.keys()
        return bool(waiting - self._claimed)

    def take(self, request_ids: Set[str]) -> list[RequestOutput]:
        """The outputs of these requests; raises a failure of one of them first, each once."""
        return self._take(lambda request_id: request_id in request_ids)

    def take_unclaimed(self) -> list[RequestOutput]:
        if not self._claimed and not self._failures:  # the usual case
            taken, self._outputs = self._outputs, []
            return taken
        return self._take(lambda request_id: request_id not in self._claimed)

    def _take(self, wanted: Callable[[str], bool]) -> list[RequestOutput]:
        for request_id in self._failures:
            if wanted(request_id):
                raise self._failures.pop(request_id)
        taken = [output for output in self._outputs if wanted(output.request_id)]
        self._outputs = [output for output in self._outputs if not wanted(output.request_id)]
        return taken
