"""Which product each layer of an engine has on a CPU, and whether all layers run in one call."""

from __future__ import annotations

import pytest

from folovllm import LLM
from folovllm.layers.compiled_ops import CompiledLinear
from folovllm.layers.quantization.compiled import CompiledQuantizedLinear
from folovllm.models.one_call import OneCallOps
from tests.m7.support import FOLDERS, generate
from tests.m7.test_kernels import pytestmark  # noqa: F401


@pytest.mark.parametrize("name", ["w4a16", "w4a8", "w8a8"])
def test_a_plain_model_is_quantised_while_it_is_loaded(name):
    llm = LLM(quantization=name, dtype="float32", device="cpu")
    model = llm.engine.core.runner.model.model
    assert isinstance(model.ops, OneCallOps)
    assert model.ops.prepared is None
    llm.generate("Once upon a time", use_tqdm=False)
    assert model.ops.prepared is not None  # all layers in one call
    for layer in model.layers:
        assert isinstance(layer.mlp.down_proj.method, CompiledQuantizedLinear)
    assert isinstance(llm.engine.core.runner.model.lm_head.method, CompiledLinear)
    plain = LLM(quantization=name, dtype="float32", device="cpu", enforce_eager=True)
    assert not isinstance(plain.engine.core.runner.model.model.ops, OneCallOps)
    assert generate(llm) == generate(plain)


def test_layers_of_two_kinds_run_one_by_one():
    llm = LLM(FOLDERS / "pack-quantized-mixed", dtype="float32", device="cpu", skip_tokenizer_init=True)
    generate(llm, 2)
    model = llm.engine.core.runner.model.model
    assert isinstance(model.layers[0].mlp.down_proj.method, CompiledLinear)
    assert isinstance(model.layers[0].mlp.gate_up_proj.method, CompiledQuantizedLinear)
    assert model.ops.prepared is None


@pytest.mark.parametrize("name", ["gptq-4-bits", "int-quantized"])
def test_made_up_weights_of_a_quantized_shape(name):
    options = {"load_format": "dummy", "dtype": "float32", "device": "cpu", "skip_tokenizer_init": True}
    llm = LLM(FOLDERS / name, **options)
    assert [len(tokens) for tokens in generate(llm, 4)] == [4, 4, 4]
    assert isinstance(llm.engine.core.runner.model.model.layers[0].mlp.down_proj.method, CompiledQuantizedLinear)
