from dataclasses import replace

from folovllm.models.shard import cut_tensor
from lab_judge import expect, invariant, raises
from support import shard

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
ALL_6 = slice(0, 6)


@invariant(1)
def test_a_norm_is_whole():
    expect(cut_tensor("model.layers.0.input_layernorm.weight", (6,), shard(1)), (ALL_6,))
    expect(cut_tensor(f"{ATTENTION}.q_norm.weight", (8,), shard(1)), (slice(0, 8),))


@invariant(1)
def test_what_describes_all_of_a_layer_is_whole():
    expect(cut_tensor(f"{MLP}.down_proj.weight_shape", (2,), shard(1)), (slice(0, 2),))
    expect(cut_tensor(f"{MLP}.up_proj.g_idx", (6,), shard(1)), (ALL_6,))


@invariant(2)
def test_by_outputs():
    expect(cut_tensor(f"{ATTENTION}.q_proj.weight", (32, 6), shard(1)), (slice(16, 32), ALL_6))
    expect(cut_tensor(f"{ATTENTION}.k_proj.weight", (16, 6), shard(1)), (slice(8, 16), ALL_6))
    expect(cut_tensor(f"{ATTENTION}.v_proj.weight", (16, 6), shard(0)), (slice(0, 8), ALL_6))
    expect(cut_tensor(f"{MLP}.gate_proj.weight", (16, 6), shard(1)), (slice(8, 16), ALL_6))
    expect(cut_tensor(f"{MLP}.up_proj.weight", (16, 6), shard(0)), (slice(0, 8), ALL_6))


@invariant(2)
def test_biases_and_the_vocabulary():
    expect(cut_tensor(f"{ATTENTION}.k_proj.bias", (16,), shard(1)), (slice(8, 16),))
    expect(cut_tensor("model.embed_tokens.weight", (10, 6), shard(1)), (slice(5, 10), ALL_6))
    expect(cut_tensor("lm_head.weight", (10, 6), shard(0)), (slice(0, 5), ALL_6))


@invariant(3)
def test_by_inputs():
    expect(cut_tensor(f"{ATTENTION}.o_proj.weight", (6, 32), shard(1)), (ALL_6, slice(16, 32)))
    expect(cut_tensor(f"{MLP}.down_proj.weight", (6, 16), shard(0)), (ALL_6, slice(0, 8)))
    expect(cut_tensor(f"{MLP}.down_proj.g_idx", (16,), shard(1)), (slice(8, 16),))


@invariant(4)
def test_a_bias_behind_a_sum_is_rank_0s():
    expect(cut_tensor(f"{ATTENTION}.o_proj.bias", (6,), shard(0)), (ALL_6,))
    expect(cut_tensor(f"{ATTENTION}.o_proj.bias", (6,), shard(1)), None)
    expect(cut_tensor(f"{ATTENTION}.o_proj.bias", (6,), replace(shard(1), rank=2)), None)


@invariant(5)
def test_inputs_first():
    expect(cut_tensor(f"{ATTENTION}.o_proj.qweight", (4, 6), shard(1)), (slice(2, 4), ALL_6))
    expect(cut_tensor(f"{MLP}.down_proj.scales", (2, 6), shard(0)), (slice(0, 1), ALL_6))
    expect(cut_tensor(f"{ATTENTION}.q_proj.qzeros", (6, 4), shard(1)), (ALL_6, slice(2, 4)))
    expect(cut_tensor(f"{MLP}.up_proj.g_idx", (6,), shard(0)), (ALL_6,))


@invariant(6)
def test_eight_codes_in_a_number():
    expect(cut_tensor(f"{MLP}.down_proj.weight_packed", (6, 2), shard(1)), (ALL_6, slice(1, 2)))
    expect(cut_tensor(f"{ATTENTION}.o_proj.weight_scale", (6, 4), shard(0)), (ALL_6, slice(0, 2)))
    expect(cut_tensor(f"{ATTENTION}.q_proj.weight_packed", (32, 1), shard(1)), (slice(16, 32), slice(0, 1)))


@invariant(6)
def test_one_group_of_all_inputs():
    expect(cut_tensor(f"{MLP}.down_proj.weight_scale", (6, 1), shard(1)), (ALL_6, slice(0, 1)))
    expect(cut_tensor(f"{MLP}.down_proj.weight_zero_point", (6, 1), shard(0)), (ALL_6, slice(0, 1)))


@invariant(6)
def test_further_dimensions_are_whole():
    expect(cut_tensor(f"{ATTENTION}.o_proj.weight", (6, 4, 5), shard(1)), (ALL_6, slice(2, 4), slice(0, 5)))


@invariant(6)
def test_not_through_a_packed_number():
    with raises(ValueError, says="model.layers.0.mlp.down_proj.weight_packed"):
        cut_tensor(f"{MLP}.down_proj.weight_packed", (6, 3), shard(1))
    with raises(ValueError, says="cannot be cut"):
        cut_tensor(f"{MLP}.down_proj.weight_packed", (6, 3), shard(0))


@invariant(6)
def test_one_number_for_all_outputs_belongs_to_no_rank():
    with raises(ValueError, says="cannot be cut"):
        cut_tensor(f"{ATTENTION}.q_proj.weight_scale", (1, 6), shard(1))
