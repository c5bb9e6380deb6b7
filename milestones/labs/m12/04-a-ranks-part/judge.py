import pytest
import torch

from folovllm.lora.request import Pair
from folovllm.models.decoder import DecoderSpec
from folovllm.models.lora import LoRALayers
from folovllm.models.shard import Shard
from lab_judge import expect, invariant

SPEC = DecoderSpec(
    vocab_size=10, hidden_size=4, intermediate_size=6, num_layers=1, num_heads=2, num_kv_heads=2, head_size=3,
    rms_norm_eps=1e-6, rope={}, tie_word_embeddings=False,
)  # fmt: skip


def shard(rank):
    heads = range(rank, rank + 1)
    return Shard(rank, SPEC, heads, heads, range(3 * rank, 3 * rank + 3), range(5 * rank, 5 * rank + 5), {})


def part(rank, name, inputs, outs, scale=0.5):
    layers = LoRALayers.__new__(LoRALayers)
    layers.shard = None if rank is None else shard(rank)
    a = torch.arange(2 * inputs).view(2, inputs).to(torch.bfloat16)
    b = torch.arange(outs * 2).view(outs, 2).to(torch.bfloat16)
    return layers._part_of(f"model.layers.0.{name}", Pair(a, b, scale))


@invariant(1)
def test_the_scale_is_inside_b():
    a, b = part(None, "self_attn.q_proj", 2, 2)
    expect([a.tolist(), b.tolist()], [[[0, 1], [2, 3]], [[0, 0.5], [1, 1.5]]])


@invariant(1)
@pytest.mark.parametrize("rank", [None, 0])
def test_both_are_float32(rank):
    expect([str(each.dtype) for each in part(rank, "self_attn.q_proj", 4, 6)], ["torch.float32"] * 2)


@invariant(2)
@pytest.mark.parametrize("name", ["self_attn.k_proj", "mlp.down_proj"])
def test_one_rank_has_all(name):
    expect([list(each.shape) for each in part(None, name, 6, 4)], [[2, 6], [4, 2]])


@invariant(3)
@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"])
@pytest.mark.parametrize("rank", [0, 1])
def test_outputs_are_bs_rows(name, rank):
    whole, mine = part(None, name, 4, 6), part(rank, name, 4, 6)
    expect([mine[0].tolist(), mine[1].tolist()], [whole[0].tolist(), whole[1][3 * rank : 3 * rank + 3].tolist()])


@invariant(4)
@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj"])
@pytest.mark.parametrize("rank", [0, 1])
def test_inputs_are_as_columns(name, rank):
    whole, mine = part(None, name, 6, 4), part(rank, name, 6, 4)
    expect([mine[0].tolist(), mine[1].tolist()], [whole[0][:, 3 * rank : 3 * rank + 3].tolist(), whole[1].tolist()])
