"""Shared by M3's judges: sequences without an engine."""

from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams


def sequence(name, num_tokens, blocks=(), num_computed=0):
    """`num_tokens` tokens of prompt, of which `num_computed` are in the cache, in `blocks`."""
    data = SequenceData(list(range(num_tokens)))
    blocks = list(blocks)
    return Sequence(name, name, data, SamplingParams(), block_ids=blocks, num_computed_tokens=num_computed)
