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
    stretched: int


class Host(Protocol):
    """The replica whose steps these are."""

    scheduler: Scheduler
    cost: CostModel
    meter: Meter
    now: float
    previous_end: float

    @property
    def counts(self) -> Counts: ...

    def count(self, steps: int, rows: int, seconds: float) -> None: ...

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
            left = limit - len(data.prompt_token_ids) - len(data.output_token_ids)
            if most is not None:
                left = min(left, most - len(data.output_token_ids))
            self._ends.setdefault(left - 1, []).append(i)

    def next_end(self) -> float | None:
        """When the next step would end. None: the scheduler must be asked, for one may join, or give way."""
        scheduler = self.replica.scheduler
        if not self.count or (scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs):
            return None
        if len(self._opens[self.j % self.kv.block_size]) > self.kv.pool.num_free:
            return None
        pairs = self.kv_tokens + self.count
        return self.replica.now + self.replica.cost.seconds(self.count, self.count, pairs, pairs)

    def step(self, end: float) -> bool:
        """Take the step that ends then. Returns whether a request has ended by it."""
        replica, kv, seqs, opens = self.replica, self.kv, self.seqs, self._opens
        for i in opens[self.j % kv.block_size]:
            self._give(i)
            kv.allocate_slots([(seqs[i], 1)])
        replica.meter.itl.add(end - replica.now, self.count)
        replica.count(1, self.count, end - replica.now)
        replica.counts.stretched += 1
        replica.now = replica.previous_end = end
        self.kv_tokens += self.count
        self.j += 1
        for i in opens[self.j % kv.block_size]:  # who will need a block for the next step has just filled one
            self._give(i)
            kv.cache_blocks(seqs[i])
        ending = self._ends.pop(self.j - 1, None)
        for i in ending or ():
            self._give(i)
            self._alive[i] = False
            opens[-self.starts[i] % kv.block_size].remove(i)
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
