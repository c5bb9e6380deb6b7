"""What windows make of block tables: what is freed, and how long a prefix all groups of layers can serve.

    full layers      [a][b][c][d][e]     all blocks of the prefix
    window layers    [·][·][·][d][e]     those that the window of the next query reaches; the others were given back
                              a hit of 5 blocks; without d of the window layers, one of 3 if b and c are there

A block of a further group is cached beside the first group's block of the same tokens, as its child: it can be found
while that one can be found. A sequence that gives a block of a window back keeps the first group's block, and when it
ends the further groups' blocks are freed first. So a child is evicted before its parent here, too. If the first group
has a window itself its blocks have no parent, since the blocks before them may be gone: hash, tokens and salt are
compared.

vLLM: v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator.find_longest_cache_hit),
v1/core/single_type_kv_cache_manager.py (SlidingWindowManager)
"""

from __future__ import annotations

from collections.abc import Iterable

from folovllm.core.block_hash import HashChain
from folovllm.core.block_pool import NULL_BLOCK, BlockPool
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.request import Sequence


def get_block_ids(seq: Sequence) -> list[int]:
    """All blocks that its tables name, those of the first group first."""
    if not seq.further_tables and seq.block_ids[:1] != [NULL_BLOCK]:
        return seq.block_ids
    return [block for table in seq.tables for block in table if block != NULL_BLOCK]


def free_outside_windows(pool: BlockPool, groups: KVCacheGroups, seq: Sequence) -> None:
    """Give back the blocks that no further query of a running sequence reads: its tables have null blocks there. Those
    of the first group go last, since it has the others' parents."""
    for group in reversed(range(len(groups.windows) if groups.have_windows else 0)):
        table = seq.tables[group]
        place = min(groups.first_block(group, seq.num_computed_tokens), len(table)) - 1
        while place >= 0 and table[place] != NULL_BLOCK:
            pool.free_blocks([table[place]])
            table[place] = NULL_BLOCK
            place -= 1


def serves(groups: KVCacheGroups, tables: list[list[int]], num_tokens: int) -> bool:
    """Whether a sequence's tables have all that a query behind its first `num_tokens` tokens reads."""
    begins = (groups.first_block(group, num_tokens) for group in range(len(tables)))
    end = -(-num_tokens // groups.block_size)
    return all(begin >= end or table[begin] != NULL_BLOCK for begin, table in zip(begins, tables, strict=True))


def parents_of(groups: KVCacheGroups, seq: Sequence) -> list[tuple[list[int], list[int]]]:
    """Its tables, each with the parents of its blocks, as BlockPool.check_invariants takes them."""
    none = [NULL_BLOCK] * len(seq.block_ids)
    first = [NULL_BLOCK, *seq.block_ids] if groups.windows[0] is None else none
    return [(seq.block_ids, first), *((table, seq.block_ids) for table in seq.further_tables)]


def check_tables(groups: KVCacheGroups, seq: Sequence) -> None:
    """All are equally long, and what one lacks is at its beginning and out of the window.

    Raises RuntimeError where this does not hold.
    """
    for group, table in enumerate(seq.tables):
        gone, may_go = table.count(NULL_BLOCK), groups.first_block(group, seq.num_computed_tokens)
        if len(table) != len(seq.block_ids) or any(table[:gone]) or gone > may_go:
            raise RuntimeError(f"sequence {seq.seq_id}, group {group}: {table} must lack {may_go} blocks at most")


def find_prefix(pool: BlockPool, groups: KVCacheGroups, chain: HashChain, most: int) -> list[list[int]]:
    """The tables of the longest cached prefix, of `most` blocks at most: of each group what a query behind it reads."""
    first = _find_chain(pool, chain, most) if groups.windows[0] is None else [NULL_BLOCK] * most
    length = len(first)
    tables = [first, *([NULL_BLOCK] * length for _ in groups.windows[1:])]
    missing: int | None = length
    while missing is not None:
        # A prefix that ends behind a missing block reads it, if a longer one does: so the next one ends before it.
        length = missing
        missing = _first_missing(pool, groups, chain, tables, length)
    return [table[:length] for table in tables]


def _find_chain(pool: BlockPool, chain: HashChain, most: int) -> list[int]:
    block_ids, parent = list[int](), NULL_BLOCK
    for place in range(most):
        found = pool.get_cached_block(chain.block_hash(place), parent, chain.tokens(place), chain.cache_salt)
        if found is None:
            break
        block_ids.append(found)
        parent = found
    return block_ids


def _first_missing(
    pool: BlockPool, groups: KVCacheGroups, chain: HashChain, tables: list[list[int]], length: int
) -> int | None:
    """Fills in the blocks that a query behind `length` blocks reads, from the last one on; the place of the first that
    cannot be found."""
    begins = [groups.first_block(group, length * groups.block_size) for group in range(len(tables))]
    whole = groups.windows[0] is None  # and it has been found
    for place in reversed(range(min(begins[whole:], default=length), length)):
        for group in range(whole, len(tables)):
            if place >= begins[group]:
                found = _find(pool, chain, tables, group, place)
                if found is None:
                    return place
                tables[group][place] = found
    return None


def _name(chain: HashChain, group: int, place: int) -> bytes:
    return chain.block_hash(place) + (group.to_bytes(2, "big") if group else b"")


def _parent(tables: list[list[int]], group: int, place: int) -> int:
    return tables[0][place] if group else NULL_BLOCK


def _find(pool: BlockPool, chain: HashChain, tables: list[list[int]], group: int, place: int) -> int | None:
    parent, token_ids = _parent(tables, group, place), chain.tokens(place)
    return pool.get_cached_block(_name(chain, group, place), parent, token_ids, chain.cache_salt)


def cache_group(pool: BlockPool, chain: HashChain, tables: list[list[int]], group: int, places: Iterable[int]) -> bool:
    """Cache the full blocks at these places of a group, or take those that are cached already, as
    BlockPool.cache_full_blocks does. Returns whether the table was changed."""
    table, changed = tables[group], False
    for place in places:
        if table[place] == NULL_BLOCK:
            continue  # its window has left it meanwhile
        found = _find(pool, chain, tables, group, place)
        if found is None:
            name, parent = _name(chain, group, place), _parent(tables, group, place)
            pool.cache_block(table[place], name, parent, chain.tokens(place), chain.cache_salt)
        elif found != table[place]:
            pool.touch([found])
            pool.free_blocks([table[place]])
            table[place] = found
            changed = True
    return changed
