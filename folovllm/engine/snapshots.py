"""EngineSnapshot: an engine's figures, its pool of blocks as a bar of cells, and the steps that it has made.

The bar shows the part of the pool where something is. A cell is one block, or several where these are more than there
are cells, of which the busiest counts. A snapshot is plain data, so that it can come from another process.

vLLM: v1/metrics/stats.py
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from folovllm.core.step_record import StepRecord
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.stats import EngineStats

CELLS = 384
FEWEST = 96  # blocks that a bar shows, where there are as many
STEPS, ROWS = 1024, 64  # that are kept, and of each at most
LETTERS = "fcus"  # from free to busiest
STEP_TOKENS = tuple(2**power for power in range(15))


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """`replica` names the engine where there are several. In `block_map` each cell has a letter: f free, c cached, u in
    use, s shared; the first begins with block `first_block`, each is `blocks_per_cell` of them. `steps`,
    `steps_by_tokens`, `step_tokens`: of Steps."""

    replica: str | None
    stats: EngineStats
    block_map: str
    first_block: int = 1
    blocks_per_cell: int = 1
    steps: tuple[dict[str, Any], ...] = ()
    steps_by_tokens: tuple[int, ...] = ()
    step_tokens: int = 0


class Steps:
    """The newest steps of an engine, from its first snapshot on. Of each: `time` in seconds since 1970, when it was
    scheduled; `running` requests; `used` blocks; and `rows`, each (sequence, tokens computed before, tokens in this
    step, tokens of the prompt, blocks of all these tokens, tokens that it drew). Of all steps since then,
    `steps_by_tokens` counts those with at most STEP_TOKENS[i] tokens and more than the one before; the last, the rest.
    They had `step_tokens` together."""

    def __init__(self, engine: LLMEngine) -> None:
        self.newest: deque[dict[str, Any]] = deque(maxlen=STEPS)
        self.steps_by_tokens, self.step_tokens = [0] * (len(STEP_TOKENS) + 1), 0
        self._kv = engine.scheduler.kv
        engine.core.listen(self)

    def __call__(self, record: StepRecord) -> None:
        output, rows, more = record.output, [], record.output.num_lookahead_tokens
        columns = output.scheduled_seqs[:ROWS], record.num_computed_tokens, output.num_scheduled_tokens
        for seq, start, num, token in zip(*columns, record.token_ids or (), strict=False):
            drawn = seq.get_len() - start - num if seq.seq_id in more else int(token is not None)
            num += more.get(seq.seq_id, 0)
            rows.append([seq.seq_id, start, num, seq.get_prompt_len(), self._kv.blocks_for(start + num), drawn])
        if record.token_ids is not None:
            self.steps_by_tokens[bisect_left(STEP_TOKENS, output.total_num_scheduled_tokens)] += 1
            self.step_tokens += output.total_num_scheduled_tokens
        used = self._kv.num_blocks - record.num_free
        self.newest.append({"time": record.times[0], "running": record.num_running, "used": used, "rows": rows})


_STEPS = WeakKeyDictionary[LLMEngine, Steps]()


def snapshot_of(engine: LLMEngine, replica: str | None = None) -> EngineSnapshot:
    if engine not in _STEPS:
        _STEPS[engine] = Steps(engine)
    steps = _STEPS[engine]
    counts = tuple(steps.newest), tuple(steps.steps_by_tokens), steps.step_tokens
    return EngineSnapshot(replica, engine.stats(), *_block_map(engine), *counts)


def _block_map(engine: LLMEngine) -> tuple[str, int, int]:
    pool = engine.scheduler.kv.pool
    # Copies made in one go: a step may be changing the pool in its thread.
    refs = np.array(pool.all_refs())
    state = np.minimum(refs, 2) + (refs > 0)
    cached = np.array(pool.cached_blocks(), np.int64) - 1
    state[cached] = np.maximum(state[cached], 1)
    there = np.flatnonzero(state >= min(2, state.max()))  # what is in use, or else what can be found
    first, last = (there[0], there[-1] + 1) if state.any() else (0, 1)
    last = min(max(last, first + FEWEST), len(state))
    first = max(0, min(first, last - FEWEST))
    return bar_of(state[first:last], CELLS), int(first) + 1, -(-int(last - first) // CELLS)


def bar_of(state: np.ndarray, cells: int) -> str:
    per_cell = -(-len(state) // cells)
    padded = np.pad(state, (0, -len(state) % per_cell))
    return "".join(LETTERS[busiest] for busiest in padded.reshape(-1, per_cell).max(axis=1))
