"""The states of a sequence and of a request, and the table of which may follow which.

    WAITING ─▶ RUNNING ─▶ FINISHED_{STOPPED, LENGTH_CAPPED, ABORTED, IGNORED}
       ▲          │ ▲
       └──────────┘ └─▶ SWAPPED

vLLM: v1/request.py (RequestStatus)
"""

from __future__ import annotations

from enum import Enum, auto

from folovllm.outputs import FinishReason


class SequenceStatus(Enum):
    WAITING = auto()  # has no KV cache: not yet admitted, or preempted and to be recomputed
    RUNNING = auto()  # gets tokens scheduled
    SWAPPED = auto()  # its KV cache lies in CPU memory
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_IGNORED = auto()  # it ended, and is not returned

    # Members are singletons. Enum's own hash is Python code, and every step asks for it several times a sequence.
    __hash__ = object.__hash__

    @staticmethod
    def is_finished(status: SequenceStatus) -> bool:
        return status in FINISHED

    @staticmethod
    def finish_reason(status: SequenceStatus) -> FinishReason | None:
        """What a CompletionOutput says; None while it runs, and for a sequence that is not returned."""
        return _FINISH_REASON.get(status)


class RequestStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        return status.name.startswith("FINISHED")


_S = SequenceStatus
FINISHED = frozenset({_S.FINISHED_STOPPED, _S.FINISHED_LENGTH_CAPPED, _S.FINISHED_ABORTED, _S.FINISHED_IGNORED})
_FINISH_REASON: dict[SequenceStatus, FinishReason] = {
    _S.FINISHED_STOPPED: "stop",
    _S.FINISHED_LENGTH_CAPPED: "length",
    _S.FINISHED_ABORTED: "abort",
}

# From each status, where a sequence may go.
TRANSITIONS: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.FINISHED_ABORTED, _S.FINISHED_IGNORED}),
    # Back to WAITING is preemption by recompute, to SWAPPED preemption by swap.
    _S.RUNNING: frozenset({_S.WAITING, _S.SWAPPED}) | FINISHED,
    _S.SWAPPED: frozenset({_S.RUNNING, _S.FINISHED_ABORTED, _S.FINISHED_IGNORED}),
    # The one way out of a finished state: of best_of sequences only the best n are returned, and which those
    # are is known when the last of them has ended.
    _S.FINISHED_STOPPED: frozenset({_S.FINISHED_IGNORED}),
    _S.FINISHED_LENGTH_CAPPED: frozenset({_S.FINISHED_IGNORED}),
    _S.FINISHED_ABORTED: frozenset(),
    _S.FINISHED_IGNORED: frozenset(),
}
