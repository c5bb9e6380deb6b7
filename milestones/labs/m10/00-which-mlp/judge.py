from folovllm.layers.moe import block_of
from lab_judge import expect, invariant


@invariant(1)
def test_a_tensor_of_an_expert():
    names = [f"model.layers.{layer}.mlp.experts.7.down_proj.weight" for layer in (0, 3)]
    expect([block_of(name) for name in names], ["experts", "experts"])


@invariant(1)
def test_in_a_layer_of_two_digits():
    expect(block_of("model.layers.12.mlp.experts.7.down_proj.weight"), "experts")


@invariant(1)
def test_an_expert_of_several_digits():
    names = [f"model.layers.0.mlp.experts.{number}.down_proj.weight" for number in (12, 127)]
    expect([block_of(name) for name in names], ["experts", "experts"])


@invariant(2)
def test_a_tensor_of_the_shared_expert():
    expect(block_of("model.layers.3.mlp.shared_expert.up_proj.weight"), "shared_expert")


@invariant(3)
def test_a_layer_with_one_mlp():
    expect(block_of("model.layers.3.mlp.up_proj.weight"), "mlp")


@invariant(3)
def test_a_gate_is_no_expert():
    names = ["model.layers.0.mlp.gate.weight", "model.layers.0.mlp.shared_expert_gate.weight"]
    expect([block_of(name) for name in names], ["mlp", "mlp"])


@invariant(4)
def test_names_of_layers():
    names = ["model.layers.0.mlp.experts", "model.layers.0.mlp.shared_expert", "model.layers.0.mlp"]
    expect([block_of(name) for name in names], ["experts", "shared_expert", "mlp"])
