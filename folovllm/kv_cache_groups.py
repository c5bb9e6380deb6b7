"""Groups of layers, each with a block table: a layer with a window needs the keys that its window reaches, no others.

    6 layers, windows of 4 but for the last      layers 5 | 0 | 1 | 2 | 3 | 4      groups of equally many layers
    block_size 2, 9 tokens                       group 0          [3][8][5][9][2]  all keys
                                                 group 1 (and so on)  [·][·][7][4][6]  · is the null block

A block of the pool is block_size tokens of one group: layer i of each group has its keys in tensor i. So all blocks
have one size, and any free block serves any group. Where layers have heads of several sizes they are not divided.

vLLM: v1/core/kv_cache_utils.py (get_kv_cache_groups), v1/kv_cache_interface.py (SlidingWindowSpec)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KVCacheGroups:
    """Plain: one group, whose layers keep all keys."""

    windows: tuple[int | None, ...] = (None,)
    """Of each group, how many keys its queries see, their own among them; None: all. The widest comes first."""
    layers: tuple[tuple[int, ...], ...] = ()
    """Of each group, which layers it has; the last group of a kind may have fewer. (): all layers are in one."""
    block_size: int = 16
    chunk: int = 1
    """The most tokens that a sequence computes in a step."""

    @property
    def have_windows(self) -> bool:
        return any(window is not None for window in self.windows)

    def first_block(self, group: int, position: int) -> int:
        """The place in the table of the first block that a query at `position` reads. None behind it reads earlier
        ones."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def most_in_group(self, group: int, num_tokens: int) -> int:
        """The most blocks of this group that a sequence of up to `num_tokens` tokens holds at a time."""
        most, window = -(-num_tokens // self.block_size), self.windows[group]
        if window is None:
            return most
        # Before the first query of a step there are window - 1 keys, and they may begin at the end of a block.
        span = window - 1 + min(self.chunk, num_tokens)
        return min(most, (span - 2) // self.block_size + 2)

    def most_blocks(self, num_tokens: int) -> int:
        """The most blocks that a sequence of up to `num_tokens` tokens holds at a time."""
        return sum(self.most_in_group(group, num_tokens) for group in range(len(self.windows)))

    def blocks_to_come(self, num_computed: int, num_held: int, num_tokens: int) -> int:
        """The most blocks that a sequence takes beside those of its tables, of num_held entries, from its token
        num_computed on, until `num_tokens` of its tokens are computed."""
        count, needed = -(-num_tokens // self.block_size), 0
        for group in range(len(self.windows)):
            gone = self.first_block(group, num_computed)
            needed += max(0, min(count - gone, self.most_in_group(group, num_tokens)) - (num_held - gone))
        return needed

    def longest(self, num_blocks: int, most: int) -> int:
        """How long a sequence that has all blocks can get; where windows give some back, `most` tokens at most."""
        if self.windows == (None,):
            return num_blocks * self.block_size
        return bisect_right(range(1, most + 1), num_blocks, key=self.most_blocks)


def group_layers(
    windows: Sequence[int | None], kv_heads: Sequence[tuple[int, int]], block_size: int, chunk: int,
    *, one_table: bool = False,
) -> KVCacheGroups:  # fmt: skip
    """
    Args:
        windows: of each layer; (): no layer has one.
        kv_heads: of each layer, how many heads of K and V there are and their size.
        one_table: what reads block tables knows one for all layers. Layers of several kinds then keep all keys.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer in range(len(kv_heads)):
        kinds.setdefault(windows[layer] if windows else None, []).append(layer)
    if len(kinds) > 1 and (one_table or len(set(kv_heads)) > 1):
        kinds = {None: list(range(len(kv_heads)))}
    fewest, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = most if most < 1.25 * fewest else fewest  # 12 and 13 layers are two groups with an empty place, not three
    groups = [
        (window, tuple(kinds[window][first : first + size]))
        for window in sorted(kinds, key=lambda each: (each is not None, -(each or 0)))
        for first in range(0, len(kinds[window]), size)
    ]
    of_groups, layers = zip(*groups, strict=True)
    return KVCacheGroups(of_groups, layers, block_size, chunk)
