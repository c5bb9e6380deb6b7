"""Blocks that are found again by what they hold, and a pool that keeps them until it needs their room.

    name   block                         free list   ┌ nothing worth keeping ┐┌── cached, least recently used first ──┐
    h0  ─▶ 4    root ◀─ 4 ◀─ 7 ◀─ 2                  [ 9 ] [ 5 ] [ 6 ]         [ 12 ] [ 2 ] [ 7 ] [ 4 ]
    h1  ─▶ 7                ▲                        handed out from here ─▶
    h2  ─▶ 2                └── 8                    2 and 7 go before 4: a block never outlives its parent
    h3  ─▶ 8

A block that nobody names stays findable while it is in the free list: a request that wants it takes it out of there;
whoever needs an empty block takes the first, and with it goes its name. Blocks are given back last one first, so a
chain loses its end before its beginning, without which the rest could not be found.

A name is looked up, and then believed only if the tokens and the parent are the ones that are wanted: should two
contents ever get one name, the second is not found and not kept.

vLLM: v1/core/block_pool.py (BlockHashToBlockMap, cache_full_blocks, get_cached_block)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from folovllm.core.block_pool import NULL_BLOCK, BlockPool


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """What a block holds: its tokens, behind those of its parent."""

    name: bytes
    parent: int
    """The block before it; NULL_BLOCK for the first of a sequence."""
    token_ids: tuple[int, ...]
    cache_salt: str | None


class CachedBlockPool(BlockPool):
    """A BlockPool whose free blocks can be found by their content until they are handed out."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._by_name: dict[bytes, int] = {}
        self._cached: dict[int, CachedBlock] = {}
        self.num_evicted = 0

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, in use or not."""
        return len(self._cached)

    def find(self, name: bytes, parent: int, token_ids: Sequence[int], cache_salt: str | None) -> int | None:
        """The block that holds these tokens behind those of `parent`."""
        block_id = self._by_name.get(name)
        if block_id is None or self._cached[block_id] != CachedBlock(name, parent, tuple(token_ids), cache_salt):
            return None
        return block_id

    def keep(
        self, block_id: int, name: bytes, parent: int, token_ids: Sequence[int], cache_salt: str | None
    ) -> bool:
        """From now on this block, which is in use, can be found. False when its name belongs to other tokens, or its
        parent cannot be found (any more)."""
        if name in self._by_name or (parent != NULL_BLOCK and parent not in self._cached):
            return False
        self._by_name[name] = block_id
        self._cached[block_id] = CachedBlock(name, parent, tuple(token_ids), cache_salt)
        return True

    def forget_all(self) -> None:
        """Nothing is found any more; blocks in use stay with those who use them."""
        self._by_name.clear()
        self._cached.clear()

    def may_write(self, block_id: int) -> bool:
        """A block that can be found must stay what it is."""
        return self._refs[block_id] == 1 and block_id not in self._cached

    def copies_needed(self, block_id: int, num_writers: int) -> int:
        return num_writers if block_id in self._cached else super().copies_needed(block_id, num_writers)

    def share(self, block_ids: Iterable[int]) -> None:
        """One more table names these blocks; a cached one may have been free until now."""
        for block_id in block_ids:
            if self._refs[block_id] == 0 and block_id in self._cached:
                self._unlink(block_id)
                self._refs[block_id] = 1
                self.num_free -= 1
            else:
                super().share([block_id])

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
            del self._by_name[cached.name]
            self.num_evicted += 1

    def _put_back(self, block_id: int) -> None:
        """A cached block to the end of the list, any other to its front."""
        self._link(block_id, behind=self._prev[NULL_BLOCK] if block_id in self._cached else NULL_BLOCK)

    def check_invariants(self, tables: Iterable[list[int]]) -> None:
        """And: names and blocks belong to each other, and of two free cached blocks no child goes after its parent."""
        super().check_invariants(tables)
        if {cached.name: block_id for block_id, cached in self._cached.items()} != self._by_name:
            raise RuntimeError(f"cached blocks {self._cached} are not those that have names: {self._by_name}")
        order = {block_id: place for place, block_id in enumerate(self.free_blocks())}
        for block_id, cached in self._cached.items():
            if cached.parent == NULL_BLOCK:
                continue
            if cached.parent not in self._cached:
                raise RuntimeError(f"block {block_id} is cached, its parent {cached.parent} is not")
            if cached.parent in order and order.get(block_id, len(order)) > order[cached.parent]:
                raise RuntimeError(f"block {block_id} would be evicted after its parent {cached.parent}")
