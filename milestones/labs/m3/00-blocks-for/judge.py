from folovllm.core.kv_cache_manager import KVCacheManager
from lab_judge import expect, invariant


@invariant(1)
def test_ten_tokens_in_blocks_of_four():
    expect(KVCacheManager(num_blocks=8, block_size=4).blocks_for(10), 3)


@invariant(1)
def test_other_blocks():
    expect([KVCacheManager(num_blocks=8, block_size=size).blocks_for(10) for size in (1, 3, 16)], [10, 4, 1])


@invariant(1)
def test_a_token_in_a_large_block():
    expect(KVCacheManager(num_blocks=8, block_size=4_000_000).blocks_for(1), 1)


@invariant(2)
def test_full_blocks_and_no_tokens():
    manager = KVCacheManager(num_blocks=8, block_size=4)
    expect([manager.blocks_for(tokens) for tokens in (0, 4, 8)], [0, 1, 2])
