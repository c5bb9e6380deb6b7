"""Blocks that are found again by what they hold, and a pool that keeps them until it needs their room.

    hash   block                         free list   ┌ nothing worth keeping ┐┌── cached, least recently used first ──┐
    h0  ─▶ 4    root ◀─ 4 ◀─ 7 ◀─ 2                  [ 9 ] [ 5 ] [ 6 ]         [ 12 ] [ 2 ] [ 7 ] [ 4 ]
    h1  ─▶ 7                ▲                        handed out from here ─▶
    h2  ─▶ 2                └── 8                    2 and 7 go before 4: a block never outlives its parent
    h3  ─▶ 8

A block that no table names stays findable while it is in the free list, and a request that wants it takes it out of
there. A request that needs an empty block takes the first of the list, which is then forgotten. Blocks are given back
last one first, so a chain loses its end before its beginning, without which the rest could not be found.

A hash is looked up, and then believed only if the tokens and the parent are the ones that are wanted. Should two
contents ever get one hash, the second is not found and not kept.

vLLM: v1/core/block_pool.py (BlockHashToBlockMap, cache_full_blocks, get_cached_block)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from folovllm.core.block_hash import HashChain
from folovllm.core.block_pool import NULL_BLOCK, BlockPool


class CachedBlock(NamedTuple):
    """What a block holds: its tokens, behind those of its parent. A tuple, since one is made for every block that is
    filled, and a frozen dataclass takes more than twice as long."""

    block_hash: bytes
    parent: int
    """The block before it; NULL_BLOCK for the first of a sequence."""
    token_ids: tuple[int, ...]
    cache_salt: str | None


class CachedBlockPool(BlockPool):
    """A BlockPool whose free blocks can be found by their content until they are handed out."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._by_hash: dict[bytes, int] = {}
        self._cached: dict[int, CachedBlock] = {}
        self.num_evicted = 0

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, in use or not."""
        return len(self._cached)

    def is_cached(self, block_id: int) -> bool:
        """Whether this block can be found, in use or not."""
        return block_id in self._cached

    def cached_blocks(self) -> list[int]:
        """All that can be found: a copy, made in one go, so that another thread may ask for it."""
        return list(self._cached)

    def get_cached_block(
        self, block_hash: bytes, parent: int, token_ids: Sequence[int], cache_salt: str | None
    ) -> int | None:
        """The block that holds these tokens behind those of `parent`."""
        block_id = self._by_hash.get(block_hash)
        if block_id is None or self._cached[block_id] != (block_hash, parent, tuple(token_ids), cache_salt):
            return None
        return block_id

    def cache_full_blocks(self, chain: HashChain, table: list[int], num_cached: int, num_full: int) -> tuple[int, bool]:
        """Of a sequence's block table the first num_cached blocks can be found, and the first num_full are full: cache
        the rest of these. A block whose content is cached already gives way to the one that has it.

        Returns how many can be found after it, and whether the table was changed.
        """
        changed = False
        for place in range(num_cached, num_full):
            block_hash, token_ids = chain.block_hash(place), chain.tokens(place)
            parent = table[place - 1] if place else NULL_BLOCK
            found = self.get_cached_block(block_hash, parent, token_ids, chain.cache_salt)
            if found is None:
                if not self.cache_block(table[place], block_hash, parent, token_ids, chain.cache_salt):
                    return place, changed  # nor can the blocks behind it be found
            elif found != table[place]:
                self.touch([found])
                self.free_blocks([table[place]])
                table[place] = found
                changed = True
        return max(num_cached, num_full), changed

    def cache_block(
        self, block_id: int, block_hash: bytes, parent: int, token_ids: Sequence[int], cache_salt: str | None
    ) -> bool:
        """From now on this block, which is in use, can be found. False when its hash belongs to other tokens, or its
        parent cannot be found (any more)."""
        if block_hash in self._by_hash or (parent != NULL_BLOCK and parent not in self._cached):
            return False
        self._by_hash[block_hash] = block_id
        self._cached[block_id] = CachedBlock(block_hash, parent, tuple(token_ids), cache_salt)
        return True

    def reset_prefix_cache(self) -> None:
        """Nothing is found any more; blocks in use stay in their tables."""
        self._by_hash.clear()
        self._cached.clear()

    def may_write(self, block_id: int) -> bool:
        """A block that can be found must stay what it is."""
        return self._refs[block_id] == 1 and block_id not in self._cached

    def copies_needed(self, block_id: int, num_writers: int) -> int:
        return num_writers if block_id in self._cached else super().copies_needed(block_id, num_writers)

    def touch(self, block_ids: Iterable[int]) -> None:
        """One more table names these blocks; a cached one may have been free until now."""
        for block_id in block_ids:
            if self._refs[block_id] == 0 and block_id in self._cached:
                self._unlink(block_id)
                self._refs[block_id] = 1
                self.num_free -= 1
            else:
                super().touch([block_id])

    def _choose(self, after: int) -> int:
        """A neighbour is taken only if nothing is lost by it; else the first of the list, whatever it holds."""
        block_id = super()._choose(after)
        if block_id in self._cached:
            block_id = self._next[NULL_BLOCK]
            self._evict(block_id)
        return block_id

    def _evict(self, block_id: int) -> None:
        cached = self._cached.pop(block_id, None)
        if cached is not None:
            del self._by_hash[cached.block_hash]
            self.num_evicted += 1

    def _put_back(self, block_id: int) -> None:
        """A cached block to the end of the list, any other to its front."""
        self._link(block_id, behind=self._prev[NULL_BLOCK] if block_id in self._cached else NULL_BLOCK)

    def check_invariants(self, tables: Iterable[list[int]]) -> None:
        """And: hashes and blocks belong to each other, of two free cached blocks no child goes after its parent, and
        a table that names a cached block names its parent as well, so that the parent stays as long."""
        tables = list(tables)
        super().check_invariants(tables)
        for table in tables:
            for parent, block_id in pairwise([NULL_BLOCK, *table]):
                if block_id in self._cached and self._cached[block_id].parent != parent:
                    raise RuntimeError(f"table {table}: behind {parent} comes {block_id}, {self._cached[block_id]}")
        if {cached.block_hash: block_id for block_id, cached in self._cached.items()} != self._by_hash:
            raise RuntimeError(f"cached blocks {self._cached} are not those that have hashes: {self._by_hash}")
        order = {block_id: place for place, block_id in enumerate(self.get_all_free_blocks())}
        for block_id, cached in self._cached.items():
            if cached.parent == NULL_BLOCK:
                continue
            if cached.parent not in self._cached:
                raise RuntimeError(f"block {block_id} is cached, its parent {cached.parent} is not")
            if cached.parent in order and order.get(block_id, len(order)) > order[cached.parent]:
                raise RuntimeError(f"block {block_id} would be evicted after its parent {cached.parent}")
