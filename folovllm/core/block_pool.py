"""The block pool: which blocks of the KV cache are free, how many sequences use each of the others, what they hold.

    hash   block                         free list   ┌ nothing worth keeping ┐┌── cached, least recently used first ──┐
    h0  ─▶ 4    root ◀─ 4 ◀─ 7 ◀─ 2                  [ 9 ] [ 5 ] [ 6 ]         [ 12 ] [ 2 ] [ 7 ] [ 4 ]
    h1  ─▶ 7                ▲                        handed out from here ─▶
    h2  ─▶ 2                └── 8                    2 and 7 go before 4: a block never outlives its parent
    h3  ─▶ 8

The free list is doubly linked through the blocks themselves, so that a block can leave from the middle at once: the
pool prefers to extend a sequence by the block that is next to its last one. Block 0 is the null block: padding in
block tables points at it, and no sequence owns it.

A block that no table names stays findable while it is in the free list, and a request that wants it takes it out of
there. A request that needs an empty block takes the first of the list, which is then forgotten. Blocks are given back
last one first, so a chain loses its end before its beginning, without which the rest could not be found.

A hash is looked up, and then believed only if the tokens and the parent are the ones that are wanted. Should two
contents ever get one hash, the second is not found and not kept.

vLLM: v1/core/block_pool.py (BlockHashToBlockMap, cache_full_blocks, get_cached_block), v1/core/kv_cache_utils.py
(FreeKVCacheBlockQueue)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from folovllm.core.block_hash import HashChain

NULL_BLOCK = 0


class CachedBlock(NamedTuple):
    """What a block holds: its tokens, behind those of its parent. A tuple, since one is made for every block that is
    filled, and a frozen dataclass takes more than twice as long."""

    block_hash: bytes
    parent: int
    """The block before it; NULL_BLOCK for the first of a sequence."""
    token_ids: tuple[int, ...]
    cache_salt: str | None


Store = Callable[[bytes, bytes, tuple[int, ...], int], None]


class BlockPool:
    """Blocks 1 .. num_blocks; the tensor behind them has one row more, the null block's.

    Args:
        enable_caching: blocks are found by their content until they are handed out again.
        store: called for each block that is cached, with its hash, its parent's, its tokens and its number; None:
            nobody keeps copies.
    """

    def __init__(self, num_blocks: int, *, enable_caching: bool = False, store: Store | None = None) -> None:
        self.num_blocks, self.enable_caching, self._store = num_blocks, enable_caching, store
        self.events: list[tuple[str, int]] | None = None  # "stored" or "removed" block, "cleared" all; None: unwanted
        self.num_free = num_blocks
        self.num_shared = 0  # blocks that more than one table names
        self._refs = [0] * (num_blocks + 1)
        # The list is closed through the null block, which is always there: no special case for its ends.
        self._next: list[int] = [*range(1, num_blocks + 1), NULL_BLOCK]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]
        self._by_hash: dict[bytes, int] = {}
        self._cached: dict[int, CachedBlock] = {}
        self.num_evicted = 0

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, in use or not."""
        return len(self._cached)

    def is_cached(self, block_id: int) -> bool:
        """Whether this block can be found, in use or not."""
        return block_id in self._cached

    def has(self, block_hash: bytes) -> bool:
        """Whether a block with this hash can be found."""
        return block_hash in self._by_hash

    def hash_of(self, block_id: int) -> bytes:
        """Of what this block holds; b"" if it cannot be found, or is the null block."""
        return self._cached[block_id].block_hash if block_id in self._cached else b""

    def cached_blocks(self) -> list[int]:
        """All that can be found: a copy, made in one go, so that another thread may ask for it."""
        return list(self._cached)

    def refs(self, block_id: int) -> int:
        return self._refs[block_id]

    def all_refs(self) -> list[int]:
        """References of blocks 1 .. num_blocks: a copy, made in one go, so that another thread may ask for it."""
        return self._refs[1:]

    def may_write(self, block_id: int) -> bool:
        """Whether a sequence that names this block may write into it: no other table names it, and it cannot be found,
        for then it must stay what it is."""
        return self._refs[block_id] == 1 and block_id not in self._cached

    def copies_needed(self, block_id: int, num_writers: int) -> int:
        """How many copies it takes to let `num_writers` sequences that name this block write: one for each, except that
        the last one writes into the block itself if no other table names it and it cannot be found."""
        return num_writers - (num_writers == self._refs[block_id] and block_id not in self._cached)

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
        """A free block: the one behind `after` if nothing is lost by it, else the first of the list, whatever it
        holds."""
        neighbour = after + 1
        is_free = after != NULL_BLOCK and neighbour <= self.num_blocks and self._refs[neighbour] == 0
        if is_free and neighbour not in self._cached:
            return neighbour
        first = self._next[NULL_BLOCK]
        self._evict(first)
        return first

    def _evict(self, block_id: int) -> None:
        cached = self._cached.pop(block_id, None)
        if cached is not None:
            del self._by_hash[cached.block_hash]
            self.num_evicted += 1
            if self.events is not None:
                self.events.append(("removed", block_id))

    def touch(self, block_ids: Iterable[int]) -> None:
        """One more table names these blocks; a cached one may have been free until now."""
        for block_id in block_ids:
            refs = self._refs[block_id]
            if refs == 0:
                if block_id not in self._cached:
                    raise ValueError(f"block_id {block_id} is free: no sequence shares it")
                self._unlink(block_id)
                self.num_free -= 1
            self.num_shared += refs == 1
            self._refs[block_id] = refs + 1

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
        if self.events is not None:
            self.events.append(("stored", block_id))
        if self._store is not None:
            self._store(block_hash, self.hash_of(parent), self._cached[block_id].token_ids, block_id)
        return True

    def reset_prefix_cache(self) -> None:
        """Nothing is found any more; blocks in use stay in their tables."""
        self._by_hash.clear()
        self._cached.clear()
        if self.events is not None:
            self.events = [("cleared", NULL_BLOCK)]

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
        """Put a block that no table names any more into the free list: one that holds nothing worth keeping to its
        front, any other to its end."""
        to_front = self.enable_caching and block_id not in self._cached
        self._link(block_id, behind=NULL_BLOCK if to_front else self._prev[NULL_BLOCK])

    def _link(self, block_id: int, behind: int) -> None:
        before = self._next[behind]
        self._prev[block_id], self._next[block_id] = behind, before
        self._next[behind] = self._prev[before] = block_id

    def check_invariants(self, tables: Iterable[list[int]], beside: Iterable[tuple[list[int], list[int]]] = ()) -> None:
        """Each block is free or referenced, never both, and its references are the tables that name it. Hashes and
        blocks belong to each other; of two free cached blocks no child goes after its parent; a table that names a
        cached block names its parent as well, so that the parent stays as long.

        beside: further tables, in which null blocks count for nothing, each with the parents of its blocks.

        Raises RuntimeError where this does not hold.
        """
        pairs = [*((table, [NULL_BLOCK, *table[:-1]]) for table in tables), *beside]
        counted = [0] * (self.num_blocks + 1)
        for table, _ in pairs:
            for block_id in table:
                counted[block_id] += 1
        counted[NULL_BLOCK] = 0
        if counted != self._refs:
            wrong = {i: (n, self._refs[i]) for i, n in enumerate(counted) if n != self._refs[i]}
            raise RuntimeError(f"block references differ, {{block: (tables that name it, references)}}: {wrong}")
        if self.num_shared != sum(refs > 1 for refs in counted):
            raise RuntimeError(f"{self.num_shared} blocks are counted as shared, of {counted}")
        free = list(self.get_all_free_blocks())
        unreferenced = {block_id for block_id in range(1, self.num_blocks + 1) if self._refs[block_id] == 0}
        if len(free) != self.num_free or len(free) != len(unreferenced) or set(free) != unreferenced:
            raise RuntimeError(f"free list {free} ({self.num_free} counted) is not the unreferenced blocks")
        self._check_cached(pairs)

    def _check_cached(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        for table, parents in pairs:
            for parent, block_id in zip(parents, table, strict=False):
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
