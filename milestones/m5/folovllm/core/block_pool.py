"""The block pool: which blocks of the KV cache are free, and how many sequences use each of the others.

    block     0     1     2     3     4     5     6            refs: how many block tables name it
    refs      –     2     1     0     1     0     0            0: it is in the free list
    free list                  3 ⇄ 5 ⇄ 6                       the longest unused first

The free list is doubly linked through the blocks themselves, so that a block can leave from the middle at once: the
pool prefers to extend a sequence by the block that is next to its last one. Block 0 is the null block: padding in
block tables points at it, and no sequence owns it.

vLLM: v1/core/block_pool.py, v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 .. num_blocks; the tensor behind them has one row more, the null block's."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_shared = 0  # blocks that more than one table names
        self._refs = [0] * (num_blocks + 1)
        # The list is closed through the null block, which is always there: no special case for its ends.
        self._next: list[int] = [*range(1, num_blocks + 1), NULL_BLOCK]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def refs(self, block_id: int) -> int:
        return self._refs[block_id]

    def may_write(self, block_id: int) -> bool:
        """Whether a sequence that names this block may write into it: no other table names it."""
        return self._refs[block_id] == 1

    def copies_needed(self, block_id: int, num_writers: int) -> int:
        """How many copies it takes to let `num_writers` sequences that name this block write: one for each, except that
        the last one writes into the block itself if no other table names it."""
        return num_writers - (num_writers == self._refs[block_id])

    def get_new_blocks(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        """`count` free blocks, each with one reference. They follow block `after` while the next one is free, because
        consecutive blocks can be read without gathering.

        Raises:
            ValueError: fewer are free. Ask num_free first.
        """
        if count > self.num_free:
            raise ValueError(f"count must be at most the {self.num_free} free blocks, got {count}")
        taken: list[int] = []
        for _ in range(count):
            after = self._choose(after)
            self._unlink(after)
            self._refs[after] = 1
            taken.append(after)
        self.num_free -= count
        return taken

    def _choose(self, after: int) -> int:
        """A free block: the one behind `after`, else the first of the list."""
        neighbour = after + 1
        if after == NULL_BLOCK or neighbour > self.num_blocks or self._refs[neighbour] > 0:
            return self._next[NULL_BLOCK]
        return neighbour

    def touch(self, block_ids: Iterable[int]) -> None:
        """One more table names these blocks."""
        for block_id in block_ids:
            if self._refs[block_id] == 0:
                raise ValueError(f"block_id {block_id} is free: no sequence shares it")
            self.num_shared += self._refs[block_id] == 1
            self._refs[block_id] += 1

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        """One table less names these blocks. Those that no table names any more go to the end of the free list."""
        refs = self._refs
        for block_id in block_ids:
            left = refs[block_id] - 1
            if left < 0:
                raise ValueError(f"block_id {block_id} is free already")
            refs[block_id] = left
            if left == 0:
                self._put_back(block_id)
                self.num_free += 1
            elif left == 1:
                self.num_shared -= 1

    def get_all_free_blocks(self) -> Iterator[int]:
        """In the order in which they will be handed out."""
        block_id = self._next[NULL_BLOCK]
        while block_id != NULL_BLOCK:
            yield block_id
            block_id = self._next[block_id]

    def _unlink(self, block_id: int) -> None:
        before, behind = self._prev[block_id], self._next[block_id]
        self._next[before], self._prev[behind] = behind, before

    def _put_back(self, block_id: int) -> None:
        """Put a block that no table names any more into the free list: at its end."""
        self._link(block_id, behind=self._prev[NULL_BLOCK])

    def _link(self, block_id: int, behind: int) -> None:
        before = self._next[behind]
        self._prev[block_id], self._next[block_id] = behind, before
        self._next[behind] = self._prev[before] = block_id

    def check_invariants(self, tables: Iterable[list[int]]) -> None:
        """Each block is free or referenced, never both, and its references are the tables that name it.

        Raises RuntimeError where this does not hold.
        """
        counted = [0] * (self.num_blocks + 1)
        for table in tables:
            for block_id in table:
                counted[block_id] += 1
        if counted != self._refs:
            wrong = {i: (n, self._refs[i]) for i, n in enumerate(counted) if n != self._refs[i]}
            raise RuntimeError(f"block references differ, {{block: (tables that name it, references)}}: {wrong}")
        if self.num_shared != sum(refs > 1 for refs in counted):
            raise RuntimeError(f"{self.num_shared} blocks are counted as shared, of {counted}")
        free = list(self.get_all_free_blocks())
        unreferenced = {block_id for block_id in range(1, self.num_blocks + 1) if self._refs[block_id] == 0}
        if len(free) != self.num_free or len(free) != len(unreferenced) or set(free) != unreferenced:
            raise RuntimeError(f"free list {free} ({self.num_free} counted) is not the unreferenced blocks")
