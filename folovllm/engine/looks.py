"""A look at an engine: its figures, and its pool of blocks as a bar of cells.

A cell stands for one block, or for several where there are more blocks than cells, of which the busiest counts. Plain
data, so that a look can come from another process.

vLLM: v1/metrics/stats.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.stats import EngineStats

CELLS = 384
_LETTERS = "fcus"  # from free to busiest


@dataclass(frozen=True, slots=True)
class Load:
    """What a server must know of its engines before it lets another request in, all in requests; `rows` is how many
    can run at a time."""

    rows: int
    running: int
    waiting: int
    swapped: int


@dataclass(frozen=True, slots=True)
class EngineLook:
    """`replica` names the engine where there are several. In `block_map` each cell has a letter: f free, c cached, u in
    use, s shared."""

    replica: str | None
    stats: EngineStats
    block_map: str


def look_at(engine: LLMEngine, replica: str | None = None) -> EngineLook:
    return EngineLook(replica, engine.stats(), _block_map(engine))


def load_of(engine: LLMEngine) -> Load:
    scheduler = engine.scheduler  # stats() would look at every block, for each request that comes
    return Load(scheduler.max_num_seqs, len(scheduler.running), len(scheduler.waiting), len(scheduler.swapped))


def _block_map(engine: LLMEngine) -> str:
    pool = engine.scheduler.kv.pool
    # Copies made in one go: a step may be changing the pool in its thread.
    refs = np.array(pool.all_refs())
    state = np.minimum(refs, 2) + (refs > 0)
    if isinstance(pool, CachedBlockPool):
        cached = np.array(pool.cached_blocks(), np.int64) - 1
        state[cached] = np.maximum(state[cached], 1)
    return _bar(state, CELLS)


def _bar(state: np.ndarray, cells: int) -> str:
    per_cell = -(-len(state) // cells)
    padded = np.pad(state, (0, -len(state) % per_cell))
    return "".join(_LETTERS[busiest] for busiest in padded.reshape(-1, per_cell).max(axis=1))


def together(looks: Sequence[EngineLook]) -> tuple[EngineStats, str]:
    """Several engines as one: their figures added up, their pools side by side in as many cells as one has.

    Raises:
        ValueError: there is none.
    """
    if not looks:
        raise ValueError("looks must be at least one, got none")
    names = [field.name for field in dataclasses.fields(EngineStats)]
    total = EngineStats(**{name: sum(getattr(look.stats, name) for look in looks) for name in names})
    if len(looks) == 1:
        return total, looks[0].block_map
    share = max(1, CELLS // len(looks))
    return total, "".join(
        _bar(np.array([_LETTERS.index(letter) for letter in look.block_map]), share) for look in looks
    )
