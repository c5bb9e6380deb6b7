"""paged_decode with a sequence's drafts as rows of one tile, and with splits that the last program adds up."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import TritonBackend, kernels_unavailable_reason
from tests.fake_cuda import FakeCuda
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, Case, Shape, make_case

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels import paged_decode as module
from folovllm.attention.kernels import paged_prefill as prefill_module
from folovllm.attention.kernels.paged_decode import FEW_SPLITS, MOST_ROWS, most_queries, paged_decode

SMALL = Shape(4, 2, 32, 16, torch.float32)


def written(spans: list[tuple[int, int]], shape: Shape = SMALL) -> Case:
    """A case whose new tokens stand in the cache."""
    case = make_case(PagedTorchBackend, spans, shape, device=KERNEL_DEVICE)
    case.layer.backend.write(case.k, case.v, case.layer.kv_cache, case.metadata.slot_mapping)
    return case


def decode(case: Case, num_splits: int, **kwargs: torch.Tensor) -> torch.Tensor:
    m = case.metadata
    return paged_decode(
        case.q, *case.layer.kv_cache.unbind(0), m.block_tables, m.seq_lens, case.layer.scale,
        query_start_loc=m.query_start_loc, num_splits=num_splits, **kwargs,
    )  # fmt: skip


def close(out: torch.Tensor, want: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    torch.testing.assert_close(out.double(), want, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("num_splits", [1, 2, 3, FEW_SPLITS + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_draft_sees_the_keys_up_to_its_own(num_splits: int, dtype: torch.dtype) -> None:
    """Beside sequences without a draft, and one that has nothing but its queries. 199 + 8 tokens are four tiles."""
    case = written([(3, 70), (1, 9), (8, 0), (1, 130), (8, 199)], SMALL._replace(dtype=dtype))
    close(decode(case, num_splits), case.want, dtype)


@pytest.mark.parametrize("new", [2, 3, 4])
def test_a_draft_in_front_of_a_splits_first_token_sees_none_of_it(new: int) -> None:
    """A split has 64 tokens, and the last queries are at 64 and behind it."""
    case = written([(new, 63)])
    close(decode(case, num_splits=2), case.want)


@pytest.mark.parametrize("group", [1, 3, 7, 8, 20])
def test_a_tile_has_room_for_whole_queries(group: int) -> None:
    queries = most_queries(group)
    assert queries * group <= max(MOST_ROWS, group)
    case = written([(queries, 80), (1, 3)], Shape(group, 1, 16, 16, torch.float32))
    for num_splits in (1, 2):
        close(decode(case, num_splits), case.want)


def test_drafts_start_in_any_order_where_not_all_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    case = written([(2, 70), (4, 0), (1, 150)])
    of_all = decode(case, 3)
    unwritten = torch.full_like(of_all, 7.0)
    order, wrong = torch.tensor([[2, 0, 1], [0, 0, 0]], dtype=torch.int32, device=KERNEL_DEVICE)
    assert torch.equal(decode(case, 3, order=wrong), of_all)
    monkeypatch.setattr(module, "places_of", lambda device: 8)
    assert torch.equal(decode(case, 3, order=order), of_all)
    assert not torch.equal(decode(case, 3, order=wrong, out=unwritten), of_all)


def test_a_place_without_a_sequence_writes_nothing_and_is_not_waited_for() -> None:
    case = written([(2, 70), (1, 70)])
    case.metadata.seq_lens[1] = 0
    out = torch.full_like(case.q, 7.0, memory_format=torch.contiguous_format)
    decode(case, 2, out=out)
    close(out[:2], case.want[:2])
    assert (out[2] == 7).all()


@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_graph_of_drafts_leaves_absent_sequences_and_padding_alone(num_splits: int) -> None:
    """Three sequences of 4, 1 and 2 rows where five may have 4: behind them there are neither keys nor rows."""
    case = written([(4, 70), (1, 9), (2, 130)])
    m, rows, absent = case.metadata, len(case.q), 2
    m.seq_lens = torch.cat([m.seq_lens, m.seq_lens.new_zeros(absent)])
    m.query_start_loc = torch.cat([m.query_start_loc, m.query_start_loc[-1:].expand(absent)])
    m.block_tables = torch.cat([m.block_tables, m.block_tables.new_zeros(absent, m.block_tables.shape[1])])
    case.q = torch.cat([case.q, torch.full_like(case.q[:1], float("nan")).expand(20 - rows, -1, -1)])
    out = torch.full_like(case.q, 7.0, memory_format=torch.contiguous_format)
    counters = torch.zeros(10, dtype=torch.int32, device=KERNEL_DEVICE)
    decode(case, num_splits, out=out, counters=counters)
    close(out[:rows], case.want)
    assert (out[rows:] == 7).all()
    assert not counters.any()


def test_what_programs_count_in_is_zero_for_the_next_launch() -> None:
    """Sequences that use all splits, some and one; and the same launch again is the same."""
    case = written([(1, 300), (2, 70), (1, 5)])
    counters = torch.zeros(6, dtype=torch.int32, device=KERNEL_DEVICE)
    first = decode(case, 5, counters=counters)
    close(first, case.want)
    assert not counters.any()
    assert torch.equal(decode(case, 5, counters=counters), first)
    assert torch.equal(decode(case, 5, counters=counters[:5]), first)  # too few: others are made


def test_a_sequence_that_uses_few_of_many_splits_has_them_merged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 and 19 tiles, of which 64 splits have one each."""
    case, asked, at_once = (
        written([(1, 1000), (1, 1200)], Shape(4, 1, 16, 16, torch.float32)),
        set(),
        module.merged_at_once,
    )
    monkeypatch.setattr(
        module, "merged_at_once", lambda *sizes: asked.add(getattr(sizes[2], "value", sizes[2])) or at_once(*sizes)
    )
    close(decode(case, 64), case.want)
    assert asked == {16, 64}


def test_a_smaller_gpu_is_asked_for_its_multiprocessors(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    places_of = module.places_of.__wrapped__
    assert places_of(torch.device("cuda")) == 3 * 132
    monkeypatch.setattr(type(torch.cuda.get_device_properties(0)), "multi_processor_count", 58)
    assert places_of(torch.device("cuda")) == 3 * 58


def test_steps_of_few_queries_launch_no_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 queries of a group of two heads fill the tile; one more, and all that are not decodes are a prompt's."""
    launched: list[int] = []
    original = prefill_module.paged_prefill
    monkeypatch.setattr(
        prefill_module, "paged_prefill", lambda *args, **kwargs: launched.append(args[6]) or original(*args, **kwargs)
    )
    make_case(TritonBackend, [(1, 33), (3, 20), (8, 0)], SMALL, device=KERNEL_DEVICE).check()
    assert launched == []
    make_case(TritonBackend, [(1, 33), (3, 20), (9, 0)], SMALL, device=KERNEL_DEVICE).check()
    assert launched == [9]


def test_what_splits_leave_in_memory_is_for_decodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the 40 tokens of a prompt beside them."""
    rows: list[int] = []
    original = module.paged_decode
    monkeypatch.setattr(
        module, "paged_decode", lambda q, *args, **kwargs: rows.append(len(q)) or original(q, *args, **kwargs)
    )
    make_case(TritonBackend, [(1, 33), (1, 20), (40, 0)], SMALL, device=KERNEL_DEVICE).check()
    assert rows == [2]
