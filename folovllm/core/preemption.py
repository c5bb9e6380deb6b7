"""Preemption: which sequences lose their blocks when none is free, and whether keys and values are dropped or moved.

    recompute   RUNNING ─▶ WAITING   the blocks are freed, the tokens kept: a prefill brings everything back
    swap        RUNNING ─▶ SWAPPED   the blocks are copied to the swap pool, and back when there is room again

"auto" recomputes a request that has one sequence left, and swaps a request that has several. Several share most of
their blocks, and recomputing would prefill each of them by itself.

vLLM: V0's core/scheduler.py (_preempt); V1 has recomputation only.
"""

from __future__ import annotations

from typing import Literal

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus

Mode = Literal["auto", "recompute", "swap"]


def choose_victims(newest: Request, needy: Request) -> list[Sequence]:
    """The sequences to preempt so that `needy`, for which no block is free, can go on.

    They are all sequences of the newest request. If that is `needy` itself, it is only its last sequence: the others
    can go on. Beams cannot go on without one of them: they take every step together.
    """
    running = newest.get_seqs(SequenceStatus.RUNNING)
    if newest is needy and not needy.sampling_params.use_beam_search:
        return running[-1:]
    return running


class Preempter:
    """Carries preemptions out, and counts them."""

    def __init__(self, kv: KVCacheManager, mode: Mode) -> None:
        self.kv, self.mode = kv, mode
        self.num_recomputed = self.num_swapped = 0  # sequences

    def preempt(self, request: Request, victims: list[Sequence], output: SchedulerOutput) -> None:
        """Take the blocks of these running sequences of `request`. They are SWAPPED afterwards, or WAITING."""
        output.stale_seq_ids += [seq.seq_id for seq in victims]
        if self._swaps(request) and (moves := self.kv.swap_out(victims)) is not None:
            output.blocks_to_swap_out += moves
            self.num_swapped += len(victims)
            status = SequenceStatus.SWAPPED
        else:  # also where the swap space is full
            for seq in victims:
                self.kv.free(seq)
            self.num_recomputed += len(victims)
            status = SequenceStatus.WAITING
        for seq in victims:
            seq.transition(status)

    def _swaps(self, request: Request) -> bool:
        if self.mode == "auto":
            return sum(not seq.is_finished() for seq in request.get_seqs()) > 1
        return self.mode == "swap"
