"""Many steps at once, where each is like the one before: all that runs decodes, and no request can join.

    step        1     2     3     4     5     6     7     8          A, B, C: their contexts have 14, 7 and 3 tokens,
    A           ·     ·     new   ·     ·     ·     ·     ·          blocks have 4
    B           ·     new   ·     ·     ·     new   ·     ·
    C           ·     new   ·     ·     ·     new   ·     ends       what waits may join then

Every step gives each sequence one token. The cache hears of a sequence only where the token opens a block or fills one,
one step in block_size, and then by the calls that the scheduler would make, in its order. So blocks are taken, cached
and evicted as ever, and all else is a sum. The stretch is over before a step for which there are not enough blocks,
since the scheduler must say which gives way, and after one in which a row becomes free while a request waits.

A test compares all of it with the scheduler's own steps.

vLLM: none
"""

from __future__ import annotations

from typing import Protocol

from folovllm.core.scheduler import Scheduler
from folovllm.request import Sequence, SequenceStatus
from folovllm.simulator.cost_model import CostModel
from folovllm.simulator.meter import Meter


class Counts(Protocol):
    steps: int
    stretched: int
    busy: float
    rows: int


class Host(Protocol):
    """The replica whose steps these are."""

    scheduler: Scheduler
    cost: CostModel
    meter: Meter
    now: float
    previous_end: float

    @property
    def counts(self) -> Counts: ...

    def finish(self, seq: Sequence, status: SequenceStatus) -> None: ...


class Stretch:
    """From a moment on at which all that runs lacks one token, until settle(). Step j, counted from 0, computes token
    starts[i] + j of sequence i; a sequence is brought to where it is only when it is looked at.

    Attributes:
        end: when the step that is under way is over; None between two steps.
    """

    def __init__(self, replica: Host) -> None:
        self.replica, self.kv = replica, replica.scheduler.kv
        self.end: float | None = None
        self._seqs = [seq for request in replica.scheduler.running for seq in request.sequences.values()]
        self._starts = starts = [seq.num_computed_tokens for seq in self._seqs]
        self._count, self._kv_tokens, self._j = len(starts), sum(starts), 0
        self._price = replica.cost.decodes(self._count)
        self._given = [0] * self._count  # steps after which the sequence was brought to where it was
        self._alive = [True] * self._count
        size, limit = self.kv.block_size, replica.scheduler.max_model_len
        self._opens: list[list[int]] = [[] for _ in range(size)]  # by j % size: which need a new block for step j
        self._ends: dict[int, list[int]] = {}  # by j: which have their last token before step j
        for i, seq in enumerate(self._seqs):
            self._opens[-starts[i] % size].append(i)
            data, most = seq.data, seq.sampling_params.max_tokens
            made = len(data.output_token_ids)
            left = limit - data.num_prompt_tokens - made
            if most is not None and most - made < left:
                left = most - made
            self._ends.setdefault(left, []).append(i)

    def run(self, until: float, *, watched: bool = False) -> bool:
        """Take the steps that are over at `until`; the next one is begun only before that. None joins meanwhile.

        watched: stop after a step by which a request ends.

        Returns False where the scheduler must be asked for the next step.
        """
        replica, kv, opens = self.replica, self.kv, self._opens
        size, count, j, end = kv.block_size, self._count, self._j, self.end
        waiting, rows = bool(replica.scheduler.waiting), replica.scheduler.max_num_seqs
        counts, add_gap = replica.counts, replica.meter.itl.add
        now = replica.previous_end
        while True:
            opening = opens[j % size]
            if end is None:
                if now >= until:
                    goes_on = True
                    break
                if not count or (waiting and count < rows) or (opening and len(opening) > kv.pool.num_free):
                    goes_on = False
                    break
                end = now + self._price(self._kv_tokens + count)
            if end > until:
                goes_on = True
                break
            if opening:
                kv.allocate_slots([(self._seqs[i], 1) for i in opening])
            seconds = end - now
            counts.steps += 1
            counts.stretched += 1
            counts.busy += seconds
            counts.rows += count
            add_gap(seconds, count)
            now, end, j = end, None, j + 1
            self._kv_tokens += count
            for i in opens[j % size]:  # what will need a block for the next step has just filled one
                self._give(i, j)
                kv.cache_blocks(self._seqs[i])
            if j in self._ends:
                replica.now = replica.previous_end = now
                count = self._let_end(j)
                if watched:
                    goes_on = True
                    break
        self.end, self._j = end, j
        replica.now = max(replica.now, now)
        replica.previous_end = now
        return goes_on

    def _let_end(self, j: int) -> int:
        """End those that have their last token. Returns how many go on."""
        for i in self._ends.pop(j):
            self._give(i, j)
            self._alive[i] = False
            self._opens[-self._starts[i] % self.kv.block_size].remove(i)
            self._count -= 1
            self._kv_tokens -= self._seqs[i].num_computed_tokens
            self.replica.finish(self._seqs[i], SequenceStatus.FINISHED_LENGTH_CAPPED)
        self._price = self.replica.cost.decodes(self._count)
        return self._count

    def settle(self) -> None:
        """Bring all sequences to where they are: the scheduler goes on."""
        for i, alive in enumerate(self._alive):
            if alive:
                self._give(i, self._j)

    def _give(self, i: int, j: int) -> None:
        seq = self._seqs[i]
        seq.num_computed_tokens = self._starts[i] + j
        seq.data.output_token_ids += [0] * (j - self._given[i])
        self._given[i] = j
