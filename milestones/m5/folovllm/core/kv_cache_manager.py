"""Block tables: which blocks hold each sequence's keys and values.

    sequence A, 10 tokens, block_size 4      block_ids [3, 7, 2]     token 9 is in block 2 at offset 1: slot 2 * 4 + 1
    its fork B, after 1 token more           block_ids [3, 7, 5]     3 and 7 are shared, 5 is B's copy of 2

A table grows block by block as tokens come, so no sequence holds more than block_size - 1 unused slots. A fork names
its parent's blocks. The first sequence that writes into a block which others name as well gets a copy of it
(copy-on-write).

Paging: Kwon et al., SOSP 2023. vLLM: v1/core/kv_cache_manager.py, v1/core/single_type_kv_cache_manager.py; swapping
and forks: V0's core/block_manager.py
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from folovllm.core.block_pool import BlockPool
from folovllm.core.scheduler_output import BlockPairs
from folovllm.request import Request, Sequence, SequenceStatus


class KVCacheManager:
    """Owns the pool of the device's blocks and that of the swap space's; writes Sequence.block_ids.

    A SWAPPED sequence's block_ids are blocks of the swap pool.
    """

    def __init__(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        self.block_size = block_size
        self.num_blocks, self.num_swap_blocks = num_blocks, num_swap_blocks
        self.clear()

    def clear(self, seqs: Iterable[Sequence] = ()) -> None:
        """All blocks are free again, whichever tables name them; the tables of `seqs` are emptied."""
        self.pool = BlockPool(self.num_blocks)
        self.swap_pool = BlockPool(self.num_swap_blocks)
        for seq in seqs:
            self._clear_table(seq)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def has_slot(self, seq: Sequence) -> bool:
        """Whether the next token's keys and values go into a block that is begun, and that no other table names."""
        num_tokens = seq.num_computed_tokens
        return num_tokens % self.block_size > 0 and self.pool.may_write(seq.block_ids[num_tokens // self.block_size])

    def allocate_slots(self, seq_tokens: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        """Make room for the tokens that each sequence computes next, (sequence, how many): for all of them or for none.

        Returns the copies that must be made before they are written, or None when fewer than keep_free blocks would
        stay free.
        """
        if self._blocks_needed(seq_tokens) + keep_free > self.pool.num_free:
            return None
        pairs: BlockPairs = []
        for seq, num_tokens in seq_tokens:
            start, table = seq.num_computed_tokens, seq.block_ids
            first = start // self.block_size  # the first block that is written to
            if first < len(table) and not self.pool.may_write(table[first]):
                shared = table[first]
                table[first] = self.pool.get_new_blocks(1, after=shared)[0]
                self.pool.free_blocks([shared])
                pairs.append((shared, table[first]))
            num_new = self.blocks_for(start + num_tokens) - len(table)
            if num_new > 0:
                table += self.pool.get_new_blocks(num_new, after=table[-1] if table else 0)
        return pairs

    def _blocks_needed(self, seq_tokens: list[tuple[Sequence, int]]) -> int:
        """How many new blocks that takes, for growing tables and for copies (BlockPool.copies_needed)."""
        needed = 0
        writers: dict[int, int] = {}
        for seq, num_tokens in seq_tokens:
            start, table = seq.num_computed_tokens, seq.block_ids
            needed += max(0, self.blocks_for(start + num_tokens) - len(table))
            first = start // self.block_size
            if first < len(table) and not self.pool.may_write(table[first]):
                writers[table[first]] = writers.get(table[first], 0) + 1
        return needed + sum(self.pool.copies_needed(block, count) for block, count in writers.items())

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """`child`, which has no blocks, gets the first `num_tokens` tokens of `parent`: shared, not copied."""
        child.block_ids = parent.block_ids[: self.blocks_for(num_tokens)]
        child.num_computed_tokens = num_tokens
        self.pool.touch(child.block_ids)

    def get_computed_blocks(self, request: Request, seq: Sequence) -> bool:
        """Let `seq`, which has no blocks, share those that a running sequence of the same `request` has computed of the
        same tokens. Returns whether there are any.
        """
        shared, donor = 0, seq
        for sibling in request.get_seqs(SequenceStatus.RUNNING):
            common = min(common_prefix(sibling, seq), sibling.num_computed_tokens)
            if common > shared:
                shared, donor = common, sibling
        if shared:
            self.fork(donor, seq, min(shared, seq.get_len() - 1))  # the last token is computed, for its logits
        return shared > 0

    def free(self, seq: Sequence) -> None:
        """Free the blocks of a sequence on the device, the last one first: it is then the first to be handed out."""
        self.pool.free_blocks(reversed(seq.block_ids))
        self._clear_table(seq)

    def free_swapped(self, seq: Sequence) -> None:
        """Free the blocks of a swapped sequence."""
        self.swap_pool.free_blocks(seq.block_ids)
        self._clear_table(seq)

    def _clear_table(self, seq: Sequence) -> None:
        seq.block_ids = []
        seq.num_computed_tokens = 0

    def swap_out(self, seqs: list[Sequence]) -> BlockPairs | None:
        """Move these sequences' blocks to the swap pool; blocks that they share stay shared there. None: no room."""
        if len(_distinct(seqs)) > self.swap_pool.num_free:
            return None
        return self._move(seqs, self.pool, self.swap_pool)

    def swap_in(self, seqs: list[Sequence], keep_free: int = 0) -> BlockPairs | None:
        """Move them back, if there is room for them and for the tokens that they compute next."""
        full: set[int] = set()
        own = 0  # blocks that no other sequence shares: each needs them from the first block that it writes to
        for seq in seqs:
            num_full = seq.num_computed_tokens // self.block_size
            full.update(seq.block_ids[:num_full])
            own += self.blocks_for(seq.get_len()) - num_full
        if len(full) + own + keep_free > self.pool.num_free:
            return None
        return self._move(seqs, self.swap_pool, self.pool)

    def _move(self, seqs: list[Sequence], source: BlockPool, target: BlockPool) -> BlockPairs:
        old = _distinct(seqs)
        moved = dict(zip(old, target.get_new_blocks(len(old)), strict=True))
        seen: set[int] = set()
        for seq in seqs:
            target.touch(moved[block] for block in seq.block_ids if block in seen)  # get_new_blocks() counted the first
            seen.update(seq.block_ids)
            source.free_blocks(reversed(seq.block_ids))
            seq.block_ids = [moved[block] for block in seq.block_ids]
        return list(moved.items())

    def check_invariants(self, running: Iterable[Sequence], swapped: Iterable[Sequence]) -> None:
        """Check both pools, and that each table is exactly as long as its sequence's tokens need."""
        running, swapped = list(running), list(swapped)
        self.pool.check_invariants(seq.block_ids for seq in running)
        self.swap_pool.check_invariants(seq.block_ids for seq in swapped)
        for seq in [*running, *swapped]:
            if not self.blocks_for(seq.num_computed_tokens) <= len(seq.block_ids) <= self.blocks_for(seq.get_len()):
                raise RuntimeError(
                    f"sequence {seq.seq_id} has {len(seq.block_ids)} blocks for {seq.num_computed_tokens} of "
                    f"{seq.get_len()} tokens"
                )


def _distinct(seqs: list[Sequence]) -> list[int]:
    """The blocks that these sequences name, each once, in the order of the tables."""
    return list(dict.fromkeys(block for seq in seqs for block in seq.block_ids))


def common_prefix(a: Sequence, b: Sequence) -> int:
    """How many tokens two sequences of one request have in common: the prompt, and what they drew alike."""
    outputs = zip(a.data.output_token_ids, b.data.output_token_ids, strict=False)
    return a.get_prompt_len() + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], outputs))
