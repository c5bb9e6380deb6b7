"""Names in the place of hashes: the core's pool finds by them what it would find by tokens."""

from __future__ import annotations

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.request import Request, Sequence
from folovllm.simulator.load import Job
from folovllm.simulator.prompts import NamedBlocks, make_request


def admit(cache: KVCacheManager, number: str, job: Job) -> tuple[Request, Sequence]:
    """Let a request in: it takes what is there, and computes the rest of its prompt."""
    request = make_request(number, job, 0.0)
    seq = request.get_seqs()[0]
    cache.set_chain(seq, NamedBlocks(seq.data, number, job, cache.block_size))
    cache.get_computed_blocks(request, seq)
    assert cache.allocate_slots([(seq, job.prompt_tokens - seq.num_computed_tokens)]) == []
    seq.num_computed_tokens = job.prompt_tokens
    cache.cache_blocks(seq)
    return request, seq


def test_a_chat_behind_another_prefix_is_not_found():
    """The second block is called the same, and comes after another one."""
    cache = KVCacheManager(30, 4, enable_prefix_caching=True)
    admit(cache, "0", Job(0.0, 12, 1, "a", 4, "x"))
    again, _ = admit(cache, "1", Job(0.0, 13, 1, "a", 4, "x"))
    assert again.num_cached_tokens == 12
    elsewhere, _ = admit(cache, "2", Job(0.0, 12, 1, "b", 4, "x"))
    assert elsewhere.num_cached_tokens == 0
    later, _ = admit(cache, "3", Job(0.0, 13, 1, "b", 4, "x"))
    assert later.num_cached_tokens == 4
