"""CUDA graphs: which batch sizes are recorded, to which of them a batch is padded, and what a recording sees."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from folovllm.worker.cuda_graph import MAX_GRAPH_SIZE, GraphBuffers, capture_sizes, padded_size

rising = st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted)


@given(st.integers(1, 2000))
def test_the_sizes_rise_from_one_to_the_largest_batch(max_num_seqs: int) -> None:
    sizes = capture_sizes(max_num_seqs)
    assert sizes[0] == 1
    assert sizes[-1] == min(max_num_seqs, MAX_GRAPH_SIZE)
    assert all(smaller < larger for smaller, larger in pairwise(sizes))
    assert all(larger - smaller <= max(8, smaller // 16) for smaller, larger in pairwise(sizes))


@given(rising, st.integers(1, 70))
def test_a_batch_gets_the_smallest_size_that_holds_it(sizes: list[int], num_seqs: int) -> None:
    assert padded_size(num_seqs, sizes) == min((size for size in sizes if size >= num_seqs), default=None)


def test_the_sizes_by_hand() -> None:
    assert capture_sizes(1) == [1]
    assert capture_sizes(3) == [1, 2, 3]
    assert capture_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert capture_sizes(300)[-4:] == [256, 272, 288, 300]
    assert len(capture_sizes(256)) == 35
    assert [padded_size(n, capture_sizes(20)) for n in (1, 3, 4, 5, 17, 20, 21)] == [1, 4, 4, 8, 20, 20, None]


def test_a_batch_of_more_than_eight_is_padded_by_less_than_a_tenth_on_average() -> None:
    batches = range(9, MAX_GRAPH_SIZE + 1)
    sizes = capture_sizes(MAX_GRAPH_SIZE)
    waste = [(padded_size(num_seqs, sizes) or 0) / num_seqs - 1 for num_seqs in batches]
    assert 0 <= sum(waste) / len(waste) < 0.1


def test_the_metadata_of_a_size_are_views_of_the_buffers_and_promise_one_query_each() -> None:
    """Of a length that no sequence exceeds: what is recorded must be right for all that will be replayed."""
    buffers = GraphBuffers(8, max_model_len=30, block_size=4, device=torch.device("cpu"))
    buffers.clear(3)
    _, _, metadata = buffers.inputs(3)
    assert (metadata.max_query_len, metadata.max_seq_len, metadata.num_decodes) == (1, 30, 3)
    assert metadata.query_start_loc.tolist() == [0, 1, 2, 3]
    assert metadata.seq_lens.tolist() == [1, 1, 1]  # good to run with before anything has been loaded
    assert metadata.decode_order is not None
    assert metadata.decode_order.tolist() == [0, 1, 2]
    assert metadata.block_tables.tolist() == [[0] * 8] * 3
    for name in ("block_tables", "query_start_loc"):
        assert getattr(metadata, name).data_ptr() == getattr(buffers, name).data_ptr()
    for name in ("seq_lens", "slot_mapping", "decode_order"):
        assert getattr(metadata, name).untyped_storage().data_ptr() == buffers.packed.untyped_storage().data_ptr()
