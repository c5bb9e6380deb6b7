"""Products whose rows do not depend on how many rows there are: only row counts are used that agree bit for bit.

A product's kernel is chosen by shape. With one row it may sum in another order than with two, and then the last bits of
a row depend on its company. Which counts agree differs from CPU to CPU and from library to library, so it is measured:

    count      1    2    3    4  …  256          rows of one engine step: 300
    bits       a    b    b    b  …  b      ─▶    slabs  |------ 256 ------|-- 44, padded to 48 --|

The probe is a product whose exact result is zero. What comes out is rounding alone, so that another order of the sum
shows in nearly every number, in any dtype. Ordinary numbers would hide it: rounded to bfloat16, two orders mostly give
the same.

vLLM: model_executor/determinism/batch_invariant.py, which replaces the products by kernels with a fixed order
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Product = Callable[[torch.Tensor], torch.Tensor]

# Close enough that padding costs little. Beyond 256 rows nothing is gained: the weight is then read rarely enough.
ROW_COUNTS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
NUM_PROBES = 5
# Reading a weight takes about as long as multiplying it by this many rows. It decides between groups of counts, and is
# a constant and no measurement: the same machine has to choose the same group every time.
READ_ROWS = 16
# What an engine asks for: one sequence, some, many, and a prompt.
TYPICAL_ROWS = (1, 8, 64, 256)


class RowSlabs:
    """Applies a product to any number of rows, a slab of one of `counts` rows at a time."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = counts

    def run(self, product: Product, x: torch.Tensor) -> torch.Tensor:
        """`product` of x [num_rows, in]; the last slab is padded with zeros if need be."""
        if len(x) in self.counts or len(x) == 0:
            return product(x)
        outs, start = [], 0
        for rows, size in self.plan(len(x)):
            slab = x[start : start + rows]
            outs.append(product(F.pad(slab, (0, 0, 0, size - rows)) if rows < size else slab)[:rows])
            start += rows
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def plan(self, num_rows: int) -> list[tuple[int, int]]:
        """(rows, size of the slab that takes them) for each slab."""
        largest = self.counts[-1]
        whole, rest = divmod(num_rows, largest)
        slabs = [(largest, largest)] * whole
        return [*slabs, (rest, next(size for size in self.counts if size >= rest))] if rest else slabs

    def cost(self, num_rows: int) -> int:
        """Of a product with so many rows, in rows: what is computed, and a weight's reading for each slab."""
        return sum(READ_ROWS + size for _, size in self.plan(num_rows))


def zero_sum_probe(
    out_features: int, in_features: int, weight_dtype: torch.dtype, row_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [out, in], rows [NUM_PROBES, in]) of random numbers: each product is a sum of pairs a*b and -a*b, in
    random places.

    Rows have all digits of their dtype. Products of two bfloat16 numbers would be short enough for a float32 sum of a
    few dozen of them to be exact in any order.
    """
    generator = torch.Generator().manual_seed(0)
    half, odd = divmod(in_features, 2)
    a = torch.randn(NUM_PROBES, half, generator=generator)
    b = torch.randn(out_features, half, generator=generator)
    order = torch.randperm(in_features, generator=generator)
    weight = F.pad(torch.cat([b, -b], dim=1), (0, odd))[:, order]
    rows = F.pad(torch.cat([a, a], dim=1), (0, odd))[:, order]
    return weight.to(weight_dtype), rows.to(row_dtype)


def agreeing_counts(product: Product, probes: torch.Tensor, counts: tuple[int, ...] = ROW_COUNTS) -> tuple[int, ...]:
    """The counts that give each row the same bits, at every place among them; where several groups do, the cheapest.

    Empty if no count gives a row the same bits at all its places.
    """
    groups: list[tuple[torch.Tensor, list[int]]] = []
    for count in counts:
        found = _rows_at(product, probes, count)
        if found is None:
            continue
        for known, members in groups:
            if torch.equal(known, found):
                members.append(count)
                break
        else:
            groups.append((found, [count]))
    if not groups:
        return ()
    slabs = [RowSlabs(tuple(members)) for _, members in groups]
    return min(slabs, key=_worst_cost).counts


def _rows_at(product: Product, probes: torch.Tensor, count: int) -> torch.Tensor | None:
    """The probes' products, computed `count` rows at a time; None where they depend on a row's place.

    A slab holds the probes in turn. A short one is followed by others that begin at the next probe, so that each probe
    has stood at each place, and the first probe has been computed twice.
    """
    num_probes = len(probes)
    num_slabs = num_probes + 1 if count < 2 * num_probes else 1
    at = torch.cat([torch.arange(first, first + count) % num_probes for first in range(num_slabs)])
    found = torch.cat([product(slab) for slab in probes[at].split(count)])
    first_of_each = torch.stack([found[int((at == probe).nonzero()[0])] for probe in range(num_probes)])
    return first_of_each if torch.equal(found, first_of_each[at]) else None


def _worst_cost(slabs: RowSlabs) -> float:
    """How much more than a product with the very number of rows, for the worst of the typical numbers."""
    return max(slabs.cost(rows) / (READ_ROWS + rows) for rows in TYPICAL_ROWS)
