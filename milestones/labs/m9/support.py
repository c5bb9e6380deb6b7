"""Shared by M9's judges: a small decoder cut in two, and a group of ranks that is not there."""

from folovllm.models.decoder import DecoderSpec
from folovllm.models.shard import Shard

SPEC = DecoderSpec(
    vocab_size=10, hidden_size=6, intermediate_size=16, num_layers=1, num_heads=4, num_kv_heads=2, head_size=8,
    rms_norm_eps=1e-6, rope={}, tie_word_embeddings=False,
)  # fmt: skip


def shard(rank):
    """Half of it: rank 0 or rank 1."""
    heads, kv_heads = range(2 * rank, 2 * rank + 2), range(rank, rank + 1)
    columns, tokens = range(8 * rank, 8 * rank + 8), range(5 * rank, 5 * rank + 5)
    return Shard(rank, SPEC, heads=heads, kv_heads=kv_heads, columns=columns, tokens=tokens)


class Group:
    """Rank `rank` of two. The other one's summand is known beforehand; what this one gave is kept."""

    world_size = 2

    def __init__(self, rank, other=0.0):
        self.rank, self.other, self.given = rank, other, []

    def all_reduce(self, x):
        self.given.append(x.clone())
        x += self.other
        return x
