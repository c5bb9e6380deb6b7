from dataclasses import replace

import pytest
import torch

from folovllm.lora.request import Pair
from folovllm.models.decoder import DecoderSpec
from folovllm.models.lora import LoRALayers
from folovllm.models.shard import Shard
from lab_judge import expect, expect_close, invariant

SPEC = DecoderSpec(
    vocab_size=10, hidden_size=4, intermediate_size=6, num_layers=1, num_heads=2, num_kv_heads=2, head_size=3,
    rms_norm_eps=1e-6, rope={}, tie_word_embeddings=False,
)  # fmt: skip


def shard(rank):
    heads = range(rank, rank + 1)
    return Shard(rank, SPEC, heads, heads, range(3 * rank, 3 * rank + 3), range(5 * rank, 5 * rank + 5), {})


def pair_of(inputs, outs, dtype, scale):
    a, b = (torch.arange(2 * size).view(shape).to(dtype) for size, shape in ((inputs, (2, inputs)), (outs, (outs, 2))))
    return Pair(a, b, scale)


def layers_of(rank):
    layers = LoRALayers.__new__(LoRALayers)
    layers.shard = None if rank is None else shard(rank)
    return layers


def part(rank, name, inputs, outs, scale=0.5):
    return layers_of(rank)._part_of(f"model.layers.0.{name}", pair_of(inputs, outs, torch.bfloat16, scale))


@invariant(1)
def test_the_scale_is_inside_b():
    a, b = part(None, "self_attn.q_proj", 2, 2)
    expect([a.tolist(), b.tolist()], [[[0, 1], [2, 3]], [[0, 0.5], [1, 1.5]]])


@invariant(1)
@pytest.mark.parametrize("rank", [None, 0])
def test_both_are_float32(rank):
    expect([str(each.dtype) for each in part(rank, "self_attn.q_proj", 4, 6)], ["torch.float32"] * 2)


@invariant(1)
def test_the_scaled_numbers_are_those_of_float32():
    _, b = part(None, "self_attn.q_proj", 2, 2, scale=1 / 3)
    expect_close(b, torch.tensor([[0.0, 1 / 3], [2 / 3, 1.0]]), atol=1e-6)


@invariant(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_adapter_stays_as_it_is(dtype):
    pair, layers = pair_of(4, 6, dtype, 0.5), layers_of(0)
    layers._part_of("model.layers.0.self_attn.q_proj", pair)
    expect(pair.b.tolist(), [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]])


@invariant(1)
def test_each_adapter_has_its_own_part():
    layers, name = layers_of(None), "model.layers.0.self_attn.q_proj"
    parts = [layers._part_of(name, pair_of(4, 6, torch.float32, scale))[1] for scale in (1.0, 2.0)]
    expect([each[1].tolist() for each in parts], [[2, 3], [4, 6]])


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


@invariant(3)
@pytest.mark.parametrize("name", ["self_attn.k_proj", "self_attn.v_proj"])
def test_two_ranks_may_have_the_same_kv_head(name):
    layers = layers_of(1)
    layers.shard = Shard(1, replace(SPEC, num_kv_heads=1), range(1, 2), range(1), range(3, 6), range(5, 10), {})
    a, b = layers._part_of(f"model.layers.0.{name}", pair_of(4, 3, torch.float32, 1.0))
    expect([list(a.shape), b.tolist()], [[2, 4], [[0, 1], [2, 3], [4, 5]]])


@invariant(4)
@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj"])
@pytest.mark.parametrize("rank", [0, 1])
def test_inputs_are_as_columns(name, rank):
    whole, mine = part(None, name, 6, 4), part(rank, name, 6, 4)
    expect([mine[0].tolist(), mine[1].tolist()], [whole[0][:, 3 * rank : 3 * rank + 3].tolist(), whole[1].tolist()])


@invariant(4)
def test_parts_need_not_be_equal():
    layers = layers_of(0)
    layers.shard = Shard(0, SPEC, range(1), range(1), range(4), range(5), {})
    a, b = layers._part_of("model.layers.0.mlp.down_proj", pair_of(6, 4, torch.float32, 1.0))
    expect([a.tolist(), list(b.shape)], [[[0, 1, 2, 3], [6, 7, 8, 9]], [4, 2]])
