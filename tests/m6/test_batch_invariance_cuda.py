"""What batch_invariant=True rests on where there is a GPU, bit for bit: in Triton's interpreter where there is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import kernels_unavailable_reason
from folovllm.attention.metadata import AttentionMetadata
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, Case, Shape, make_case

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.backends.invariant import TritonInvariantBackend
from folovllm.attention.kernels import paged_prefill
from folovllm.layers.kernels.matmul import linear
from tests.helpers import some

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fixed_order")]  # interpreted: some seconds each
DTYPES = [torch.float32, torch.bfloat16]
LENGTH = 90  # of a sequence: in tiles of 16 positions (32 rows, two heads in a group), the last is partly filled


def rows_of(num_rows: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, 96, generator=generator).to(KERNEL_DEVICE, dtype)


@pytest.mark.parametrize("dtype", some(DTYPES), ids=str)
def test_a_row_of_a_product_is_the_same_among_any_number_of_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(150, 96, generator=generator).to(KERNEL_DEVICE, dtype)
    bias = torch.randn(150, generator=generator).to(KERNEL_DEVICE, dtype)
    rows = rows_of(140, dtype)
    wanted = linear(rows, weight, bias)
    exact = rows.double() @ weight.double().T + bias.double()
    assert ((wanted.double() - exact).norm() / exact.norm()).item() < (1e-6 if dtype == torch.float32 else 4e-3)
    for count in (1, 2, 31, 33, 64, 65, 139):
        assert torch.equal(linear(rows[:count], weight, bias), wanted[:count]), count
        assert torch.equal(linear(rows[140 - count :], weight, bias), wanted[140 - count :]), count
    assert linear(rows[:0], weight).shape == (0, 150)


def chunk_of(case: Case, seqs: list[tuple[int, int, int]]) -> AttentionMetadata:
    """Of the sequences named, the queries from one position up to another: [(sequence, first, end)]."""
    m = case.metadata
    places = torch.tensor([seq for seq, _, _ in seqs], device=KERNEL_DEVICE)
    nums = [end - first for _, first, end in seqs]
    return AttentionMetadata(
        query_start_loc=torch.tensor([0, *nums], device=KERNEL_DEVICE).cumsum(0).int(),
        seq_lens=torch.tensor([end for _, _, end in seqs], dtype=torch.int32, device=KERNEL_DEVICE),
        slot_mapping=m.slot_mapping[:0],
        block_tables=m.block_tables[places],
        max_query_len=max(nums),
        max_seq_len=max(end for _, _, end in seqs),
        num_decodes=next((i for i, num in enumerate(nums) if num > 1), len(nums)),
    )


@pytest.mark.parametrize(
    ("dtype", "heads"),
    some([(torch.bfloat16, (4, 2)), (torch.float32, (3, 1)), (torch.float32, (4, 2)), (torch.bfloat16, (3, 1))]),
)
def test_a_query_is_the_same_by_prompt_by_chunk_and_by_decode_alone_and_in_company(
    dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    shape = Shape(*heads, 32, 16, dtype)
    case = make_case(PagedTorchBackend, [(LENGTH, 0), (70, 0)], shape, device=KERNEL_DEVICE)
    assert case.layer.backend is not None
    assert case.layer.kv_cache is not None
    case.layer.backend.write(case.k, case.v, case.layer.kv_cache, case.metadata.slot_mapping)
    backend = TritonInvariantBackend(*heads, 32, case.layer.scale)
    first_of = [0, LENGTH]

    def attend(*seqs: tuple[int, int, int]) -> list[torch.Tensor]:
        """What comes out for each of these parts when they are one step."""
        q = torch.cat([case.q[first_of[seq] + first : first_of[seq] + end] for seq, first, end in seqs])
        out = backend.forward(q, case.layer.kv_cache, chunk_of(case, list(seqs)))
        return list(out.split([end - first for _, first, end in seqs]))

    whole, other = attend((0, 0, LENGTH), (1, 0, 70))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(torch.cat([whole, other]).double(), case.want, atol=tolerance, rtol=0)
    for cuts in ([0, LENGTH], [0, 1, 17, 18, 50, LENGTH], [0, 16, 33, 89, LENGTH]):
        for first, end in pairwise(cuts):
            assert torch.equal(attend((0, first, end))[0], whole[first:end]), (first, end)
            beside = attend((1, 69, 70), (0, first, end), (1, 3, 40))
            assert torch.equal(beside[1], whole[first:end]), (first, end)
            assert torch.equal(beside[0], other[69:70])
            assert torch.equal(beside[2], other[3:40])
    decodes = attend(*((0, position, position + 1) for position in range(40, LENGTH, 7)))
    assert torch.equal(torch.cat(decodes), whole[40:LENGTH:7])


class Launches:
    """In place of the kernel: keeps the options of each launch."""

    def __init__(self) -> None:
        self.options: set[tuple[object, ...]] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Launches:
        return self

    def __call__(self, *args: object, **options: object) -> None:
        self.options.add(tuple(options[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "BY_POSITION")))


def test_one_tile_placed_by_position_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter cannot tell: its rows have the same bits wherever they stand in a tile."""
    monkeypatch.setattr(paged_prefill, "_paged_prefill", launches := Launches())
    cache = torch.empty(9, 16, 2, 32, device=KERNEL_DEVICE)
    tables, ends = torch.zeros(2, 8, dtype=torch.int32), torch.full([2], 100, dtype=torch.int32)
    for longest in (1, 7, 8, 9, 40, 100):
        q, starts = torch.empty(2 * longest, 4, 32), torch.tensor([0, longest, 2 * longest], dtype=torch.int32)
        paged_prefill.paged_prefill(q, cache, cache, tables, starts, ends, longest, 1.0, batch_invariant=True)
    assert {options[-1] for options in launches.options} == {True}
    assert len(launches.options) == 1
