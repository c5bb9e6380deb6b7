"""Prompts that have a length and no tokens, and names for their blocks.

    job   900 tokens, the first 512 are the group's         blocks of 16
    chain [tools 0] [tools 1] … [tools 31] [#7 32] [#7 33] …   a name for each block instead of a hash of its tokens

The cache asks two things of a block: its hash, and whether the tokens are the same. A name answers both, for two blocks
have one name only where all up to there is the same. So nothing is hashed, and no token is stored.

vLLM: none
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from folovllm.core.block_hash import HashChain
from folovllm.request import Request, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.serving.routing import DEPTH
from folovllm.simulator.load import Job


def make_request(request_id: str, job: Job, arrival_time: float) -> Request:
    """A request as the scheduler knows it. Its output ends by its length alone."""
    params = _params(job.output_tokens)
    request = Request(request_id, None, [0], params, arrival_time=arrival_time, priority=job.priority)
    # Of a prompt without tokens the scheduler asks for the length alone, and a range has one whatever its length.
    tokens = cast("list[int]", range(job.prompt_tokens))
    request.prompt_token_ids = tokens
    request.get_seqs()[0].data = SequenceData(tokens)
    return request


@lru_cache(maxsize=1024)
def _params(output_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=output_tokens, ignore_eos=True)


@lru_cache(maxsize=1024)
def prefix_names(group: str, count: int) -> list[bytes]:
    """Of the first `count` blocks that all jobs of a group share: made once, since each of its jobs asks for them."""
    return [b"group " + group.encode() + b" %d" % place for place in range(count)]


class NamedBlocks(HashChain):
    """The chain of a job."""

    def __init__(self, data: SequenceData, request_id: str, job: Job, block_size: int) -> None:
        self.data, self.block_size, self.cache_salt = data, block_size, None
        self.prefix = prefix_names(job.group or "", job.prefix_tokens // block_size)
        self._own = request_id.encode() + b" %d"

    def block_hash(self, place: int) -> bytes:
        return self.prefix[place] if place < len(self.prefix) else self._own % place

    def tokens(self, place: int) -> tuple[int, ...]:
        return ()


def first_hashes(request_id: str, job: Job, block_size: int) -> list[bytes]:
    """What a router is given of a prompt: its first full blocks."""
    names = NamedBlocks(SequenceData([]), request_id, job, block_size)
    return [names.block_hash(place) for place in range(min(DEPTH, job.prompt_tokens // block_size))]
