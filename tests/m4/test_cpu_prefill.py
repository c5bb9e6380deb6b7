"""csrc/prefill.cpp against float64: many queries of a sequence over blocks that lie anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from folovllm.attention.backends.cpu import CPUBackend, attend
from tests.m4.cpu_target import target  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("target")]
BLOCK_SIZE = 16
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}  # bfloat16: the result's own rounding


class Sequences:
    """Keys and values of sequences in scattered blocks. Slots that no token has hold NaN."""

    def __init__(self, lens: list[int], heads: int, kv_heads: int, size: int, cache_dtype: torch.dtype) -> None:
        torch.manual_seed(sum(lens))
        self.lens = torch.tensor(lens, dtype=torch.int32)
        longest = -(-max(lens) // BLOCK_SIZE)
        self.tables = torch.randperm(len(lens) * longest).view(len(lens), longest).int() + 1
        self.cache = torch.full((2, len(lens) * longest + 1, BLOCK_SIZE, kv_heads, size), torch.nan, dtype=cache_dtype)
        self.kv = [torch.randn(2, length, kv_heads, size).to(cache_dtype) for length in lens]
        for seq, (table, length) in enumerate(zip(self.tables, lens, strict=True)):
            places = torch.arange(length)
            self.cache[:, table[places // BLOCK_SIZE].long(), places % BLOCK_SIZE] = self.kv[seq]
        self.q = [torch.randn(length, heads, size) for length in lens]
        self.scale = size**-0.5

    def attend(self, parts: list[tuple[int, int, int]], dtype: torch.dtype) -> list[torch.Tensor]:
        """The queries [first, end) of sequences, in one step: [(sequence, first, end)]."""
        ends = torch.tensor([end - first for _, first, end in parts]).cumsum(0)
        starts = ends - torch.tensor([end - first for _, first, end in parts])
        lens = self.lens.clone()
        for seq, _, end in parts:
            lens[seq] = end
        q = torch.cat([self.q[seq][first:end] for seq, first, end in parts]).to(dtype)
        out = torch.full_like(q, torch.nan)
        seqs = torch.tensor([seq for seq, _, _ in parts])
        attend("prefill", q, self.cache, torch.stack([starts, ends], 1), seqs, lens, self.tables, self.scale, out)
        return list(out.tensor_split(ends[:-1]))

    def exact(self, seq: int, dtype: torch.dtype) -> torch.Tensor:
        q, (k, v) = self.q[seq].to(dtype).double(), self.kv[seq].double()
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.scale
        scores.masked_fill_(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


@pytest.mark.parametrize(("dtype", "cache_dtype"), CPUBackend.dtypes, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 64), (3, 1, 48), (2, 2, 16), (16, 1, 128)])
def test_prompts_of_any_length(heads, kv_heads, size, dtype, cache_dtype):
    lens = [2, 17, 64, 65, 150]
    sequences = Sequences(lens, heads, kv_heads, size, cache_dtype)
    attended = sequences.attend([(seq, 0, length) for seq, length in enumerate(lens)], dtype)
    for seq, got in enumerate(attended):
        want = sequences.exact(seq, dtype)
        assert ((got.double() - want).norm() / want.norm()).item() < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "cache_dtype"), CPUBackend.dtypes, ids=str)
def test_a_query_has_the_same_bits_however_its_prompt_is_cut(dtype, cache_dtype):
    sequences = Sequences([150, 90], 6, 2, 32, cache_dtype)
    whole, other = sequences.attend([(0, 0, 150), (1, 0, 90)], dtype)
    for cuts in ([0, 1, 150], [0, 63, 64, 65, 150], [0, 30, 60, 90, 120, 150]):
        for first, end in pairwise(cuts):
            alone, beside = sequences.attend([(0, first, end), (1, 40, 90)], dtype)
            assert torch.equal(alone, whole[first:end])
            assert torch.equal(beside, other[40:])


def test_scores_that_grow_along_the_keys_overflow_nowhere():
    """The largest score so far changes with every tile of keys, by far more than exp could hold."""
    sequences = Sequences([200], 1, 1, 16, torch.float32)
    sequences.q[0].fill_(10.0)
    growing = torch.arange(200.0)[:, None, None].expand(200, 1, 16)
    places = torch.arange(200)
    sequences.kv[0][0] = growing
    sequences.cache[0, sequences.tables[0][places // BLOCK_SIZE].long(), places % BLOCK_SIZE] = growing
    (got,) = sequences.attend([(0, 0, 200)], torch.float32)
    assert (got - sequences.kv[0][1]).abs().max() < 1e-6, "each query sees its own token alone"


def test_a_number_that_is_none_stays_in_its_sequence():
    sequences = Sequences([40, 40], 2, 1, 16, torch.float32)
    sequences.q[0][20] = torch.nan
    broken, sound = sequences.attend([(0, 0, 40), (1, 0, 40)], torch.float32)
    assert broken[20].isnan().all()
    assert not broken[:20].isnan().any()
    assert not sound.isnan().any()
