"""Prompts that have a length and no tokens, and a prefix cache that believes in them.

    job   900 tokens, the first 512 are the group's         blocks of 16
    chain [tools 0] [tools 1] … [tools 31] [#7 32] [#7 33] …   a name for each block instead of a hash of its tokens

The cache asks two things of a block: its hash, and whether the tokens are the same. A name answers both, for two blocks
have one name only where all up to there is the same. So nothing is hashed, and no token is stored.

vLLM: none
"""

from __future__ import annotations

from typing import cast

from folovllm.core.block_pool import NULL_BLOCK
from folovllm.core.kv_cache_manager import BlockPairs
from folovllm.core.prefix_caching_manager import PrefixCachingManager
from folovllm.request import Request, Sequence, SequenceData
from folovllm.routing import DEPTH, prefix_hashes
from folovllm.sampling_params import SamplingParams
from folovllm.simulator.load import Job
from folovllm.simulator.named_pool import NamedBlockPool, NamedBlocks, prefix_names

_params: dict[int, SamplingParams] = {}


def make_request(request_id: str, job: Job, arrival_time: float) -> Request:
    """A request as the scheduler knows it. Its output ends by its length alone."""
    params = _params.get(job.output_tokens)
    if params is None:
        params = _params[job.output_tokens] = SamplingParams(max_tokens=job.output_tokens, ignore_eos=True)
    request = Request(request_id, None, [0], params, arrival_time=arrival_time, priority=job.priority)
    # Of a prompt without tokens the scheduler asks for the length alone, and a range has one whatever its length.
    tokens = list(job.token_ids) if job.token_ids is not None else cast("list[int]", range(job.prompt_tokens))
    request.prompt_token_ids = tokens
    request.first_seq().data = SequenceData(tokens)
    return request


class NamedPrefixCache(PrefixCachingManager):
    """A PrefixCachingManager that takes the names of blocks from the jobs, where these have no tokens."""

    def __init__(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_size, num_swap_blocks)
        self.jobs: dict[str, Job] = {}  # by request id, of the unfinished

    def clear(self) -> None:
        super().clear()
        self.pool: NamedBlockPool = NamedBlockPool(self.num_blocks)

    def get_computed_blocks(self, request: Request, seq: Sequence) -> bool:
        job = self.jobs[request.request_id]
        if seq not in self._chains and job.token_ids is None:
            self._chains[seq] = NamedBlocks(seq.data, request.request_id, job, self.block_size)
        return super().get_computed_blocks(request, seq)

    def _take_cached(self, seq: Sequence) -> None:
        chain = self._chains[seq]
        if not isinstance(chain, NamedBlocks):
            super()._take_cached(seq)
            return
        found = self.pool.find(chain, (seq.get_len() - 1) // self.block_size)
        self.pool.touch(found)
        seq.block_ids, seq.num_computed_tokens = found, len(found) * self.block_size
        self._num_cached[seq] = len(found)

    def allocate_slots(self, wants: list[tuple[Sequence, int]], keep_free: int = 0) -> BlockPairs | None:
        """Most calls are for one sequence that is let in already and whose blocks are all full: nothing can be shared
        with what it writes, so there is nothing to copy."""
        seq, num_tokens = wants[0]
        table = seq.block_ids
        if len(wants) > 1 or self._first_seqs or seq.num_computed_tokens != len(table) * self.block_size:
            return super().allocate_slots(wants, keep_free)
        num_new = self.blocks_for(num_tokens)
        if num_new + keep_free > self.pool.num_free:
            return None
        table += self.pool.get_new_blocks(num_new, after=table[-1] if table else NULL_BLOCK)
        return []

    def cache_blocks(self, seq: Sequence) -> list[Sequence]:
        """A simulated request has one sequence, so no sibling need follow it."""
        chain = self._chains[seq]
        if not isinstance(chain, NamedBlocks) or seq in self._outdated:
            return super().cache_blocks(seq)
        num_cached, num_full = self._num_cached.get(seq, 0), seq.num_computed_tokens // self.block_size
        self._num_cached[seq], changed = self.pool.cache_full_blocks(chain, seq.block_ids, num_cached, num_full)
        return [seq] if changed else []


def first_hashes(request_id: str, job: Job, block_size: int) -> list[bytes]:
    """What a router looks at, of the first full blocks of a prompt."""
    if job.token_ids is not None:
        return prefix_hashes(job.token_ids, block_size)
    if job.prefix_tokens >= DEPTH * block_size:
        return prefix_names(job.group or "", job.prefix_tokens // block_size)[:DEPTH]
    names = NamedBlocks(SequenceData([]), request_id, job, block_size)
    return [names.block_hash(place) for place in range(min(DEPTH, job.prompt_tokens // block_size))]
