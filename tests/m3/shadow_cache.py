"""A KV cache that remembers, instead of keys and values, which tokens each slot was written for.

Keys and values at position i depend on the tokens 0 .. i, so a slot holds (a hash of) just these. Before a sequence
attends to its past, the shadow looks whether every slot that its block table names holds the right beginning of this
very sequence: a copy that was forgotten, or made in the wrong order, cannot stay hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from folovllm.core.scheduler_output import BlockPairs, SchedulerOutput
from folovllm.request import Sequence

Blocks = dict[int, dict[int, int]]
"""Block -> offset in it -> hash of the tokens up to there. Nobody clears a block: as in memory, the old stays."""


class ShadowCache:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.device: Blocks = {}
        self.swap: Blocks = {}

    def execute(self, output: SchedulerOutput, behind: Mapping[str, list[int]] = MappingProxyType({})) -> None:
        """One step in the worker's order. Raises AssertionError where somebody would read what is not his.

        behind: draft tokens that are computed behind a sequence's tokens, by its id.
        """
        _copy(self.device, self.swap, output.blocks_to_swap_out)
        _copy(self.swap, self.device, output.blocks_to_swap_in)
        _copy(self.device, self.device, output.blocks_to_copy)
        written: set[tuple[int, int]] = set()
        computed = [
            (seq, num_tokens + len(behind.get(seq.seq_id, ())))
            for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
        ]
        for seq, num_tokens in computed:  # a layer first writes all new keys and values, then attends
            hashes = prefix_hashes(seq, behind.get(seq.seq_id, ()))
            for position in range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens):
                block, offset = self._slot(seq, position)
                assert (block, offset) not in written, f"two sequences write to block {block}, offset {offset}"
                written.add((block, offset))
                self.device.setdefault(block, {})[offset] = hashes[position]
        for seq, num_tokens in computed:
            hashes = prefix_hashes(seq, behind.get(seq.seq_id, ()))
            for position in range(seq.num_computed_tokens + num_tokens):
                block, offset = self._slot(seq, position)
                assert self.device.get(block, {}).get(offset) == hashes[position], (
                    f"{seq.seq_id} reads what is not its token {position} in block {block}, offset {offset}"
                )

    def scramble(self) -> None:
        """Lose everything, as far as anybody may know."""
        self.device, self.swap = {}, {}

    def _slot(self, seq: Sequence, position: int) -> tuple[int, int]:
        block = seq.block_ids[position // self.block_size]
        assert block != 0, "the null block is nobody's"
        return block, position % self.block_size


def prefix_hashes(seq: Sequence, behind: Iterable[int] = ()) -> list[int]:
    """One per token: of all tokens up to it."""
    hashes, value = [], 0
    for token_id in (*seq.get_token_ids(), *behind):
        value = hash((value, token_id))
        hashes.append(value)
    return hashes


def _copy(source: Blocks, target: Blocks, pairs: BlockPairs) -> None:
    """All are read before any is written, as one gather and one scatter do it."""
    assert len({to for _, to in pairs}) == len(pairs), "two blocks go to the same place"
    read = [(dict(source.get(of, {})), to) for of, to in pairs]
    for content, to in read:
        target[to] = content
