"""Many steps at once, where each is like the one before: all that runs decodes, and nobody can join.

    step        1     2     3     4     5     6     7     8          A, B, C: their contexts have 14, 7 and 3 tokens,
    A           ·     ·     new   ·     ·     ·     ·     ·          blocks have 4
    B           ·     new   ·     ·     ·     new   ·     ·
    C           ·     new   ·     ·     ·     new   ·     ends       ─▶ the stretch ends: who waits may join

Every step gives each sequence one token. The cache hears of a sequence only where the token opens a block or fills one,
one step in block_size, and then by the calls that the scheduler would make, in its order. So blocks are taken, cached
and evicted as ever, and all else is a sum. The stretch stops before a step for which there are not enough blocks, since
the scheduler must say who gives way.

A test compares all of it with the scheduler's own steps.

vLLM: none
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from folovllm.request import Sequence, SequenceStatus

if TYPE_CHECKING:
    from folovllm.simulator.replica import Replica

SHORTEST = 2
"""Steps for which a stretch is worth its setting up."""


def run_stretch(replica: Replica, until: float) -> bool:
    """Take quiet steps that end before `until`. All that runs must lack one token each. True: it stopped because a
    request has ended and the replica is watched."""
    scheduler = replica.scheduler
    may_join = bool(scheduler.waiting) and len(scheduler.running) < scheduler.max_num_seqs
    if may_join or scheduler.swapped or not scheduler.running:
        return False
    seqs = [seq for request in scheduler.running for seq in request.sequences.values()]
    count = len(seqs)
    kv_tokens = sum(seq.num_computed_tokens for seq in seqs)
    first = replica.cost.seconds(count, count, kv_tokens + count, kv_tokens + count)
    if replica.now + SHORTEST * first >= until:
        return False
    return _Stretch(replica, seqs, kv_tokens).run(until)


class _Stretch:
    """Step j, counted from 0, computes token start[i] + j of sequence i."""

    def __init__(self, replica: Replica, seqs: list[Sequence], kv_tokens: int) -> None:
        self.replica, self.seqs, self.kv_tokens = replica, seqs, kv_tokens
        self.kv = replica.scheduler.kv
        self.starts = [seq.num_computed_tokens for seq in seqs]
        self.alive = [True] * len(seqs)
        self.drawn = [0] * len(seqs)  # tokens of the stretch that the sequence has been given
        size = self.kv.block_size
        self.opens: list[list[int]] = [[] for _ in range(size)]  # by j % size: who needs a new block for step j
        self.ends: dict[int, list[int]] = {}  # by j: whose last token step j draws
        limit = replica.scheduler.max_model_len
        for i, seq in enumerate(seqs):
            self.opens[-self.starts[i] % size].append(i)
            data, most = seq.data, seq.sampling_params.max_tokens
            left = limit - len(data.prompt_token_ids) - len(data.output_token_ids)
            if most is not None:
                left = min(left, most - len(data.output_token_ids))
            self.ends.setdefault(left - 1, []).append(i)

    def run(self, until: float) -> bool:
        replica, kv, opens, size = self.replica, self.kv, self.opens, self.kv.block_size
        seqs, seconds, gaps = self.seqs, replica.cost.seconds, replica.meter.itl
        count, kv_tokens, now = len(seqs), self.kv_tokens, replica.now
        began, rows, j, has_ended = now, 0, 0, False
        while count and not has_ended:
            pairs = kv_tokens + count
            end = now + seconds(count, count, pairs, pairs)
            if end >= until or len(opens[j % size]) > kv.pool.num_free:
                break
            for i in opens[j % size]:
                self._give(i, j)
                kv.allocate_slots([(seqs[i], 1)])
            gaps.add(end - now, count)
            now, kv_tokens, rows, j = end, pairs, rows + count, j + 1
            for i in opens[j % size]:  # who will need a block for the next step has just filled one
                self._give(i, j)
                kv.cache_blocks(seqs[i])
            if j - 1 in self.ends:
                replica.now = now
                for i in self.ends[j - 1]:
                    self._leave(i, j)
                    count, kv_tokens = count - 1, kv_tokens - self.starts[i] - j
                has_ended = replica.watched or bool(replica.scheduler.waiting)
        for i, alive in enumerate(self.alive):
            if alive:
                self._give(i, j)
        replica.now = replica.previous_end = now
        replica.count(j, rows, now - began)
        replica.counts.stretched += j
        return has_ended and replica.watched

    def _leave(self, i: int, j: int) -> None:
        """The last token of a sequence has been drawn."""
        self._give(i, j)
        self.alive[i] = False
        self.opens[-self.starts[i] % self.kv.block_size].remove(i)
        self.replica.finish(self.seqs[i], SequenceStatus.FINISHED_LENGTH_CAPPED)

    def _give(self, i: int, j: int) -> None:
        """Bring a sequence to where it is after j steps."""
        seq = self.seqs[i]
        seq.num_computed_tokens = self.starts[i] + j
        seq.data.output_token_ids += [0] * (j - self.drawn[i])
        self.drawn[i] = j
