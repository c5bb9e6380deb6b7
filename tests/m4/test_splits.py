"""How a decode is split."""

from __future__ import annotations

from folovllm.attention.splits import MAX_SPLITS, PLACES, choose_splits


def test_the_number_of_splits_fills_the_gpu_and_never_exceeds_the_tiles() -> None:
    assert choose_splits(num_seqs=1, num_kv_heads=8, max_len=40960, block_n=64) == PLACES // 8
    assert choose_splits(num_seqs=1, num_kv_heads=8, max_len=200, block_n=64) == 4
    assert choose_splits(num_seqs=1, num_kv_heads=1, max_len=40960, block_n=64) == MAX_SPLITS
    assert choose_splits(num_seqs=256, num_kv_heads=8, max_len=40960, block_n=64) == 1
    assert choose_splits(num_seqs=37, num_kv_heads=8, max_len=40960, block_n=64) == 2


def test_a_smaller_gpu_is_full_with_fewer_programs() -> None:
    """An L4 has 58 multiprocessors."""
    assert choose_splits(num_seqs=1, num_kv_heads=8, max_len=40960, block_n=64, places=58 * 3) == 21
    assert choose_splits(num_seqs=32, num_kv_heads=8, max_len=40960, block_n=64, places=58 * 3) == 1


def test_two_waves_and_a_little_are_avoided() -> None:
    """101 * 8 programs are 2.04 times the places: the last few would run alone."""
    assert choose_splits(num_seqs=101, num_kv_heads=8, max_len=4096, block_n=64) == 2
    assert choose_splits(num_seqs=112, num_kv_heads=8, max_len=4096, block_n=64) == 1
