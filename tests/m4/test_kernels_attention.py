"""The Triton kernels by themselves, in the interpreter where there is no GPU, against float64."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import kernels_unavailable_reason
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, Case, Shape, make_case, reference

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels import paged_decode as decode_module
from folovllm.attention.kernels.paged_decode import FEW_SPLITS, choose_splits, paged_decode
from folovllm.attention.kernels.paged_prefill import choose_tiles, paged_prefill
from folovllm.attention.kernels.tile import padded_head_size

SMALL = Shape(4, 2, 32, 16, torch.float32)


def written(spans: list[tuple[int, int]], shape: Shape = SMALL) -> Case:
    """A case whose new tokens stand in the cache."""
    case = make_case(PagedTorchBackend, spans, shape, device=KERNEL_DEVICE)
    case.layer.backend.write(case.k, case.v, case.layer.kv_cache, case.metadata.slot_mapping)
    return case


def decode(case: Case, num_splits: int | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    keys, values = case.layer.kv_cache.unbind(0)
    tables, lens = case.metadata.block_tables, case.metadata.seq_lens
    return paged_decode(case.q, keys, values, tables, lens, case.layer.scale, num_splits=num_splits, out=out)


def close(out: torch.Tensor, want: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    torch.testing.assert_close(out.double(), want, atol=TOLERANCE[dtype], rtol=0)


# --- paged_decode


@pytest.mark.parametrize("num_splits", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_splits_do_not_change_the_result(num_splits: int, dtype: torch.dtype) -> None:
    """Tiles have 64 tokens: of five splits, the three sequences need 1, 2 and 4."""
    case = written([(1, 0), (1, 64), (1, 199)], SMALL._replace(dtype=dtype))
    close(decode(case, num_splits), case.want, dtype)


def test_scores_that_no_exponential_can_hold() -> None:
    """The running maximum keeps exp() in range, within a split and between splits."""
    case = written([(1, 150)])
    case.q.mul_(300)
    keys, values = (cache.flatten(0, 1) for cache in case.layer.kv_cache)
    rows = torch.arange(151, device=KERNEL_DEVICE)
    slots = case.metadata.block_tables[0, rows // 16] * 16 + rows % 16
    want = reference(case.q, keys[slots], values[slots], case.layer.scale)
    close(decode(case, num_splits=3), want)


def test_padding_rows_of_a_cuda_graph_are_harmless() -> None:
    """Rows behind the batch have one token, in slot 0 of the null block, and nobody looks at what they say."""
    case = written([(1, 20), (1, 3)])
    metadata, num_rows = case.metadata, 4
    case.layer.kv_cache[:, 0, 0] = 1.0  # what a padding row's own write leaves there
    q = torch.randn(num_rows, 4, 32, device=KERNEL_DEVICE)
    q[:2] = case.q
    tables = torch.zeros(num_rows, metadata.block_tables.shape[1], dtype=torch.int32, device=KERNEL_DEVICE)
    tables[:2] = metadata.block_tables
    lens = torch.ones(num_rows, dtype=torch.int32, device=KERNEL_DEVICE)
    lens[:2] = metadata.seq_lens
    out = paged_decode(q, *case.layer.kv_cache.unbind(0), tables, lens, case.layer.scale)
    close(out[:2], case.want)
    assert torch.equal(out[2:], torch.ones_like(out[2:]))


def test_decode_writes_into_the_place_it_is_given() -> None:
    case = written([(1, 5), (1, 9)])
    place = torch.full((2, 8, 32), 7.0, device=KERNEL_DEVICE)
    out = decode(case, out=place[:, 2:6])
    close(out, case.want)
    assert (place[:, :2] == 7).all()
    assert (place[:, 6:] == 7).all()


@pytest.mark.parametrize("num_splits", [1, 3])
def test_the_order_in_which_sequences_start_changes_nothing(num_splits: int) -> None:
    case = written([(1, 70), (1, 0), (1, 150), (1, 9)])
    keys, values = case.layer.kv_cache.unbind(0)
    m, order = case.metadata, torch.tensor([2, 0, 3, 1], dtype=torch.int32, device=KERNEL_DEVICE)
    out = paged_decode(
        case.q, keys, values, m.block_tables, m.seq_lens, case.layer.scale, order=order, num_splits=num_splits
    )
    assert torch.equal(out, decode(case, num_splits))


def test_more_splits_than_the_small_merge_has_room_for() -> None:
    case = written([(1, 300), (1, 20)])
    close(decode(case, FEW_SPLITS + 3), case.want)


def test_the_number_of_splits_never_depends_on_what_the_lengths_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph that was captured with short sequences is replayed with long ones."""
    asked: list[tuple[int, ...]] = []
    original = choose_splits
    monkeypatch.setattr(decode_module, "choose_splits", lambda *shape: asked.append(shape) or original(*shape))
    case = written([(1, 199), (1, 0)])
    decode(case)
    case.metadata.seq_lens.fill_(1)
    decode(case)
    assert asked[0] == asked[1]


# --- paged_prefill


def prefill(case: Case, **kwargs: torch.Tensor) -> torch.Tensor:
    keys, values = case.layer.kv_cache.unbind(0)
    m = case.metadata
    lens = (m.query_start_loc, m.seq_lens, m.max_query_len)
    return paged_prefill(case.q, keys, values, m.block_tables, *lens, case.layer.scale, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prefill_over_several_tiles_of_queries_and_keys(dtype: torch.dtype) -> None:
    case = written([(70, 0), (3, 130), (1, 7)], SMALL._replace(dtype=dtype))
    close(prefill(case), case.want, dtype)


@pytest.mark.parametrize("group", [1, 3, 7])
def test_a_tile_may_end_inside_of_a_group(group: int) -> None:
    """Rows are (query, head) pairs, and tiles have 32 rows in float32: 3 and 7 do not divide that."""
    case = written([(23, 4)], Shape(group, 1, 16, 16, torch.float32))
    close(prefill(case), case.want)


def test_prefill_leaves_other_tokens_alone() -> None:
    """query_start_loc may begin behind the decodes of a step."""
    case = written([(1, 9), (4, 3), (6, 0)])
    out = torch.full_like(case.q, 7.0, memory_format=torch.contiguous_format)
    m = case.metadata
    m.block_tables, m.query_start_loc, m.seq_lens = m.block_tables[1:], m.query_start_loc[1:], m.seq_lens[1:]
    prefill(case, out=out)
    close(out[1:], case.want[1:])
    assert (out[0] == 7).all()


def test_smaller_tiles_where_there_are_fewer_rows() -> None:
    assert choose_tiles(rows=14, head_pad=128, element_size=2) == (16, 64, 4)
    assert choose_tiles(rows=64, head_pad=128, element_size=2) == (64, 64, 4)
    assert choose_tiles(rows=2000, head_pad=128, element_size=2) == (128, 64, 8)
    assert choose_tiles(rows=2000, head_pad=128, element_size=4) == (32, 16, 4)
    assert choose_tiles(rows=2000, head_pad=128, element_size=2, small=True) == (128, 32, 8)


# --- both


def test_no_sequences_are_no_launch() -> None:
    case = written([(1, 3)])
    keys, values = case.layer.kv_cache.unbind(0)
    none, tables = case.q[:0], case.metadata.block_tables[:0]
    assert paged_decode(none, keys, values, tables, case.metadata.seq_lens[:0], 1.0).shape == (0, 4, 32)
    starts = case.metadata.query_start_loc[:1]
    assert paged_prefill(none, keys, values, tables, starts, case.metadata.seq_lens[:0], 0, 1.0).shape == (0, 4, 32)


def test_wrong_shapes_and_strides_are_refused() -> None:
    case = written([(1, 3)])
    (keys, values), m = case.layer.kv_cache.unbind(0), case.metadata

    def run(q: torch.Tensor = case.q, k: torch.Tensor = keys, v: torch.Tensor = values) -> torch.Tensor:
        return paged_decode(q, k, v, m.block_tables, m.seq_lens, 1.0)

    with pytest.raises(ValueError, match=r"q must be \[tokens, a multiple of 2 heads, 32\].*\[1, 3, 32\]"):
        run(q=case.q[:, :3])
    with pytest.raises(ValueError, match="value_cache must be"):
        run(v=values[:1])
    with pytest.raises(ValueError, match="must be contiguous inside a head"):
        run(q=torch.zeros(1, 32, 4, device=KERNEL_DEVICE).transpose(1, 2))
    with pytest.raises(ValueError, match="head_size must be between 1 and 256.*512"):
        padded_head_size(512)
    assert [padded_head_size(size) for size in (8, 16, 80, 128)] == [16, 16, 128, 128]
