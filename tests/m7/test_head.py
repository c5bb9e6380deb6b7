"""The head in codes, and weights of 4 bits by activations of 8: folders that have them, and online."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from folovllm import LLM
from folovllm.layers.quantization.codes import round_to_nearest
from folovllm.layers.quantization.compiled import CompiledQuantizedLinear
from folovllm.layers.quantization.formats import pack
from tests.helpers import hf_greedy
from tests.m7.support import FOLDERS, PROMPTS, generate, oracle, read
from tests.m7.test_kernels import pytestmark  # noqa: F401

BY_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}


def changed(tmp_path, change):
    """A copy of a compressed-tensors folder, its config.json and tensors as `change` leaves them."""
    shutil.copytree(FOLDERS / "pack-quantized-groups", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    change(config, tensors)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    return tmp_path / "model"


@pytest.fixture
def folder(tmp_path):
    return lambda change: changed(tmp_path, change)


def engine(path, **options):
    return LLM(path, dtype="float32", device="cpu", skip_tokenizer_init=True, **options)


def with_a_head(config, tensors):
    """In 4 bits, as the layers are."""
    weight = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).float()
    group = config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    codes = round_to_nearest(weight, bits=4, group_size=group, symmetric=True)
    tensors.pop("lm_head.weight", None)
    tensors["lm_head.weight_packed"] = pack(codes.values.int() + 8, 4, 1)
    tensors["lm_head.weight_scale"] = codes.scale.half()
    tensors["lm_head.weight_shape"] = torch.tensor(weight.shape)
    config["quantization_config"]["ignore"] = []
    config["tie_word_embeddings"] = False


def test_a_head_in_codes_is_loaded(folder):
    path = folder(with_a_head)
    llm = engine(path)
    assert isinstance(llm.engine.core.runner.model.lm_head.method, CompiledQuantizedLinear)
    model = oracle(path)
    assert generate(llm) == [hf_greedy(model, ids, 16) for ids in PROMPTS]


def test_a_tied_head_stays_the_embedding(folder):
    def change(config, tensors):
        tensors.pop("lm_head.weight", None)
        config["quantization_config"]["ignore"] = []
        config["tie_word_embeddings"] = True

    path = folder(change)
    model = oracle(path)
    assert generate(engine(path)) == [hf_greedy(model, ids, 16) for ids in PROMPTS]


@pytest.mark.parametrize("stored", ["pack-quantized", "int-quantized"])
def test_4_by_8_bits_are_loaded(folder, stored):
    def change(config, tensors):
        settings = config["quantization_config"]
        settings["format"] = settings["config_groups"]["group_0"]["format"] = stored
        settings["config_groups"]["group_0"]["input_activations"] = BY_TOKEN
        if stored == "int-quantized":
            model = read(FOLDERS / "pack-quantized-groups")
            layers = [(path, layer) for path, layer in model.named_modules() if hasattr(layer, "codes")]
            for path, layer in layers:
                for part, values in zip(layer.parts, layer.codes.values.split(list(layer.parts.values())), strict=True):
                    name = f"{path.rpartition('.')[0]}.{part}" if part else path
                    del tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_shape"]
                    tensors[f"{name}.weight"] = values.contiguous()

    path = folder(change)
    llm = engine(path)
    down = llm.engine.core.runner.model.model.layers[0].mlp.down_proj
    assert down.method.kernel(down) == "codes4_int8"
    model = oracle(path)
    assert generate(llm) == [hf_greedy(model, ids, 16) for ids in PROMPTS]


@pytest.mark.parametrize("name", ["w4a16", "w8a8"])
def test_the_embedded_models_head_is_rounded_to_8_bits(name):
    llm = LLM(quantization=name, quantize_head=True, dtype="float32", device="cpu")
    model = llm.engine.core.runner.model
    assert model.lm_head.method.kernel(model.lm_head) == "codes8"
    hidden = torch.randn(3, model.lm_head.in_features)
    table = model.model.embed_tokens.weight.float()
    size = model.lm_head.method.scheme.group_size
    while table.shape[1] % size:
        size //= 2
    rounded = round_to_nearest(table, bits=8, group_size=size, symmetric=True).dequantize()
    assert torch.allclose(model.compute_logits(hidden), hidden @ rounded.T, atol=1e-4)


def test_the_head_alone_is_not_rounded():
    with pytest.raises(ValueError, match=re.escape("quantize_head must come with quantization='w4a16' or")):
        LLM(quantize_head=True, device="cpu")
    with pytest.raises(ValueError, match=re.escape("got quantization=None")):
        LLM(FOLDERS / "awq", quantize_head=True, device="cpu", skip_tokenizer_init=True)
