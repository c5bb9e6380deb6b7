"""How many positions make a tile, and how many queries a decode computes: measured once for a shape of heads.

Attention's products are chosen by shape, as all products are, and within a product the last rows may be summed in
another order than the first ones. A prefill computes a tile's queries of a head at a time. A decode has one for each
head of a group, and is computed with as many more as it takes to be summed in the same order. What holds differs:

    CPU, library's kernel     tile    queries of a decode
    AVX-512, 6 rows or more     32    6 at least, for 128 numbers per head
    AVX2, 6 rows at a time      24    6: of 32 queries the last two would be summed in another order

The probe's keys come in pairs with the same K and opposite V, in random places. So the exact result is zero, and what
comes out is rounding alone, which another order changes.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

# torch's attention for CPUs computes up to 32 queries at a time: a larger tile would be cut, a small one is slower.
TILES = (32, 24, 16, 8)
# It reads 512 keys at a time: all the numbers of keys that a last stretch can have, and some of two stretches.
STRETCH = 512


@dataclass(frozen=True, slots=True)
class Tiling:
    tile: int
    """Positions whose queries see the same number of keys, those up to the tile's end."""
    num_rows: int
    """Queries per KV head that a decode computes."""

    def padded(self, num_tokens: int) -> int:
        return -(-num_tokens // self.tile) * self.tile

    def mask(self, num_keys: int, dtype: torch.dtype) -> torch.Tensor:
        """[tile, num_keys] to add to the scores of the last tile's queries. Its last columns are the mask of fewer
        keys."""
        behind = torch.ones(self.tile, self.tile, dtype=torch.bool).triu(1)
        corner = torch.zeros(self.tile, self.tile, dtype=dtype).masked_fill_(behind, -torch.inf)
        return F.pad(corner, (num_keys - self.tile, 0))


def find_tiling(num_kv_heads: int, group_size: int, head_size: int, dtype: torch.dtype) -> Tiling:
    """The tiling that gives a decode the bits of a prefill, for torch's present number of threads.

    Raises:
        ValueError: none does.
    """
    found = _find_tiling(num_kv_heads, group_size, head_size, dtype, torch.get_num_threads())
    if found is None:
        raise ValueError(
            f"batch_invariant=True cannot be kept by torch's attention with {num_kv_heads} KV heads of {head_size} in "
            f"{str(dtype).removeprefix('torch.')} on this CPU: a decode and a prefill differ; leave batch_invariant "
            f"out, or give another dtype"
        )
    return found


@cache
def _find_tiling(
    num_kv_heads: int, group_size: int, head_size: int, dtype: torch.dtype, num_threads: int
) -> Tiling | None:
    with torch.inference_mode():
        for tile in TILES:
            probe = Probe(tile, num_kv_heads, group_size, head_size, dtype)
            # One after the other: what fails fails at the first lengths.
            for num_rows in sorted({group_size, *(n for n in (*range(2, 9), 12, 16, 24, 32) if n > group_size)}):
                tiling = Tiling(tile, num_rows)
                if all(probe.agrees(tiling, num_keys) for num_keys in probe.lengths):
                    return tiling
    return None


class Probe:
    """Keys, values and the queries of one tile."""

    def __init__(self, tile: int, num_kv_heads: int, group_size: int, head_size: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        self.lengths = [*range(tile, STRETCH + tile + 1, tile), 2 * STRETCH // tile * tile]
        num_keys = max(self.lengths)
        k, v = randn(num_keys // 2, num_kv_heads, head_size), randn(num_keys // 2, num_kv_heads, head_size)
        # Pairs lie in one tile, in random order: then few keys cancel as well as many.
        order = torch.cat([torch.randperm(tile, generator=generator) + at for at in range(0, num_keys, tile)])
        pairs, signs = torch.arange(num_keys // 2).repeat_interleave(2), torch.tensor([1.0, -1.0]).repeat(num_keys // 2)
        self.keys = k[pairs][order].to(dtype)
        self.values = (v[pairs] * signs[:, None, None])[order].to(dtype)
        self.queries = randn(tile, num_kv_heads, group_size, head_size).to(dtype)

    def agrees(self, tiling: Tiling, num_keys: int) -> bool:
        """Whether decodes at all places of the last tile, together and one alone, are the same as the tile's."""
        mask = tiling.mask(num_keys, self.keys.dtype)
        keys, values = self.keys[:num_keys], self.values[:num_keys]
        k, v = (rows.transpose(0, 1).contiguous() for rows in (keys, values))
        wanted = attend_tile(self.queries, k, v, mask)
        together = attend_decodes(
            self.queries, keys.expand(len(mask), *keys.shape), values.expand(len(mask), *keys.shape), mask, tiling
        )
        if not torch.equal(together, wanted):
            return False
        alone = attend_decodes(self.queries[-1:], keys[None], values[None], mask[-1:], tiling)
        return torch.equal(alone, wanted[-1:])


def attend_tile(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """The queries of one tile of a sequence, q [tile, num_kv_heads, group_size, head_size] with mask [tile, num_keys].

    k and v [num_kv_heads, num_keys, head_size] have a head in one piece, because all queries of a prefill read it. The
    heads of a group are the call's batch, so that they read the same copy.
    """
    k, v = (rows.expand(q.shape[2], *rows.shape) for rows in (k, v))
    attended = F.scaled_dot_product_attention(q.permute(2, 1, 0, 3), k, v, attn_mask=mask, scale=scale)
    return attended.permute(2, 1, 0, 3)


def attend_decodes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, tiling: Tiling, scale: float | None = None
) -> torch.Tensor:
    """One query for each of several sequences, q [num_seqs, num_kv_heads, group_size, head_size], mask
    [num_seqs, num_keys]; k and v [num_seqs, num_keys, num_kv_heads, head_size] as they lie in the cache.

    The query heads of a group read the same keys, so they are the queries of one KV head. Zeros fill up their number.
    """
    group_size = q.shape[2]
    padded = F.pad(q, (0, 0, 0, tiling.num_rows - group_size))
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    attended = F.scaled_dot_product_attention(padded, k, v, attn_mask=mask[:, None, None], scale=scale)
    return attended[:, :, :group_size]
