"""Many steps at once, where each is like the one before: all that runs decodes, and nobody can join.

    step        1     2     3     4     5     6     7     8          A, B, C: their contexts have 14, 7 and 3 tokens,
    A           ·     ·     new   ·     ·     ·     ·     ·          blocks have 4
    B           ·     new   ·     ·     ·     new   ·     ·
    C           ·     new   ·     ·     ·     new   ·     ends       who waits may join then

Every step gives each sequence one token. The cache hears of a sequence only where the token opens a block or fills one,
one step in block_size, and then by the calls that the scheduler would make, in its order. So blocks are taken, cached
and evicted as ever, and all else is a sum. The stretch stops before a step for which there are not enough blocks, since
the scheduler must say who gives way.

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
    starts[i] + j of sequence i; a sequence is brought to where it is only when somebody looks at it."""

    def __init__(self, replica: Host) -> None:
        self.replica, self.kv = replica, replica.scheduler.kv
        self.seqs = [seq for request in replica.scheduler.running for seq in request.sequences.values()]
        self.starts = [seq.num_computed_tokens for seq in self.seqs]
        self.count, self.kv_tokens, self.j = len(self.seqs), sum(self.starts), 0
        self._given = [0] * self.count  # steps after which the sequence was brought to where it was
        self._alive = [True] * self.count
        size = self.kv.block_size
        self._opens: list[list[int]] = [[] for _ in range(size)]  # by j % size: who needs a new block for step j
        self._ends: dict[int, list[int]] = {}  # by j: whose last token step j draws
        limit = replica.scheduler.max_model_len
        for i, seq in enumerate(self.seqs):
            self._opens[-self.starts[i] % size].append(i)
            data, most = seq.data, seq.sampling_params.max_tokens
            made = len(data.output_token_ids)
            left = limit - data.num_prompt_tokens - made
            if most is not None and most - made < left:
                left = most - made
            self._ends.setdefault(left - 1, []).append(i)

    def next_end(self, *, waiting: bool) -> float | None:
        """When the next step would end. None: the scheduler must be asked, for one may join, or give way.

        waiting: whether a request does. It was asked once, since none comes while steps are taken.
        """
        count, replica = self.count, self.replica
        if not count or (waiting and count < replica.scheduler.max_num_seqs):
            return None
        opening = self._opens[self.j % self.kv.block_size]
        if opening and len(opening) > self.kv.pool.num_free:
            return None
        pairs = self.kv_tokens + count
        return replica.now + replica.cost.seconds(count, count, pairs, pairs)

    def step(self, end: float) -> bool:
        """Take the step that ends then. Returns whether a request has ended by it."""
        replica, kv, seqs = self.replica, self.kv, self.seqs
        size, opens = kv.block_size, self._opens
        for i in opens[self.j % size]:
            self._give(i)
            kv.allocate_slots([(seqs[i], 1)])
        counts, seconds = replica.counts, end - replica.now
        counts.steps += 1
        counts.stretched += 1
        counts.busy += seconds
        counts.rows += self.count
        replica.meter.itl.add(seconds, self.count)
        replica.now = replica.previous_end = end
        self.kv_tokens += self.count
        self.j += 1
        for i in opens[self.j % size]:  # who will need a block for the next step has just filled one
            self._give(i)
            kv.cache_blocks(seqs[i])
        ending = self._ends.pop(self.j - 1, None)
        for i in ending or ():
            self._give(i)
            self._alive[i] = False
            opens[-self.starts[i] % size].remove(i)
            self.count, self.kv_tokens = self.count - 1, self.kv_tokens - seqs[i].num_computed_tokens
            replica.finish(seqs[i], SequenceStatus.FINISHED_LENGTH_CAPPED)
        return ending is not None

    def settle(self) -> None:
        """Bring all sequences to where they are: the scheduler goes on."""
        for i, alive in enumerate(self._alive):
            if alive:
                self._give(i)

    def _give(self, i: int) -> None:
        seq = self.seqs[i]
        seq.num_computed_tokens = self.starts[i] + self.j
        seq.data.output_token_ids += [0] * (self.j - self._given[i])
        self._given[i] = self.j
