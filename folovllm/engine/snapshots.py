"""EngineSnapshot: an engine's figures, its pool of blocks as a bar of cells, and the steps that it has made.

The bar shows the part of the pool where something is. A cell is one block, or several where these are more than there
are cells, of which the busiest counts. A snapshot is plain data, so that it can come from another process.

vLLM: v1/metrics/stats.py
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from folovllm import request
from folovllm.core.group_tables import held_blocks
from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.stats import EngineStats
from folovllm.spec_decode.metrics import SpecDecodingStats

CELLS = 384
FEWEST = 96  # blocks that a bar shows, where there are as many
STEPS, ROWS = 1024, 64  # that are kept, and of each at most
_LETTERS = "fcus"  # from free to busiest


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """`replica` names the engine where there are several. In `block_map` each cell has a letter: f free, c cached, u in
    use, s shared; the first begins with block `first_block`, each is `blocks_per_cell` of them. `steps`: of Steps."""

    replica: str | None
    stats: EngineStats
    block_map: str
    first_block: int = 1
    blocks_per_cell: int = 1
    steps: tuple[dict[str, Any], ...] = ()


class Steps(EngineObserver):
    """The newest steps of an engine, from its first snapshot on. Of each: `time` in seconds since 1970, when it was
    scheduled; `running` requests; `used` blocks; and `rows`, each (sequence, tokens computed before, tokens in this
    step, tokens of the prompt, blocks, tokens that it draws)."""

    def __init__(self, engine: LLMEngine) -> None:
        self._scheduler = engine.scheduler
        self.newest: deque[dict[str, Any]] = deque(maxlen=STEPS)
        self._drafted: list[tuple[list[Any], request.Sequence, int]] = []
        """Of a step with draft tokens: its rows, their sequences, and how long these were."""

    def scheduled(self, output: SchedulerOutput) -> None:
        rows = [
            [seq.seq_id, start := seq.num_computed_tokens, num + output.num_lookahead_tokens.get(seq.seq_id, 0),
             seq.data.num_prompt_tokens, len(held_blocks(seq)), int(start + num >= seq.get_len())]
            for seq, num in zip(output.scheduled_seqs[:ROWS], output.num_scheduled_tokens, strict=False)
        ]  # fmt: skip
        if output.num_lookahead_tokens:
            self._drafted = [(row, seq, seq.get_len()) for row, seq in zip(rows, output.scheduled_seqs, strict=False)]
        used, running = self._scheduler.kv.pool.num_used, len(self._scheduler.running)
        self.newest.append({"time": time.time(), "running": running, "used": used, "rows": rows})

    def step_ended(self, outputs: list[Any]) -> None:
        for row, seq, length in self._drafted:
            row[5] = seq.get_len() - length
        self._drafted = []


def snapshot_of(engine: LLMEngine, replica: str | None = None) -> EngineSnapshot:
    steps = next((each for each in list(engine.observers) if isinstance(each, Steps)), None)
    if steps is None:
        steps = Steps(engine)
        engine.observers.append(steps)
    return EngineSnapshot(replica, engine.stats(), *_block_map(engine), tuple(steps.newest))


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
    return _bar(state[first:last], CELLS), int(first) + 1, -(-int(last - first) // CELLS)


def _bar(state: np.ndarray, cells: int) -> str:
    per_cell = -(-len(state) // cells)
    padded = np.pad(state, (0, -len(state) % per_cell))
    return "".join(_LETTERS[busiest] for busiest in padded.reshape(-1, per_cell).max(axis=1))


def merged(snapshots: Sequence[EngineSnapshot]) -> tuple[EngineStats, str]:
    """Several engines as one: their figures added up, their pools side by side in as many cells as one has.

    Raises:
        ValueError: there is none.
    """
    if not snapshots:
        raise ValueError("snapshots must be at least one, got none")
    if len(snapshots) == 1:
        return snapshots[0].stats, snapshots[0].block_map
    names = [field.name for field in dataclasses.fields(EngineStats) if field.name != "spec_decode"]
    drafted = [each.stats.spec_decode for each in snapshots if each.stats.spec_decode is not None]
    total = EngineStats(
        **{name: sum(getattr(each.stats, name) for each in snapshots) for name in names},
        spec_decode=sum(drafted, SpecDecodingStats()) if drafted else None,
    )
    share = max(1, CELLS // len(snapshots))
    states = [np.array([_LETTERS.index(letter) for letter in each.block_map]) for each in snapshots]
    return total, "".join(_bar(state, share) for state in states)
