"""Weight files whose tensors are not named or laid out as Hugging Face's own: read as they are meant, or refused with
the cause and the way out."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from folovllm import ModelLoadError
from folovllm.layers.linear import PLAIN
from folovllm.layers.ops import LayerOps
from folovllm.models.checkpoint import check_checkpoint, read_heads
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.registry import decoder_spec
from folovllm.models.shard import shard_of
from folovllm.models.weights import read_tensors
from tests.helpers import edit_tensors, hf_greedy, make_hf_folder, make_hf_model, our_warnings
from tests.m7.support import FOLDERS
from tests.m7.test_refusals import LAYER, copied, with_tensors
from tests.m10.support import KINDS
from tests.m11.test_damaged_checkpoints import PROMPT, tokens

SMALL = [5, 99, 17, 3]  # of a vocabulary of 128


def as_in_memory(kind, folder):
    """A folder with the tensors as transformers 5 has them: its save_pretrained() would take experts apart."""
    model = make_hf_model(kind)
    model.save_pretrained(folder)
    state = {name: each.contiguous().clone() for name, each in model.state_dict().items()}
    for path in folder.glob("*.safetensors"):
        path.unlink()
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_all_experts_in_one_tensor_are_read(kind, tmp_path):
    model = as_in_memory(kind, tmp_path)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))
    assert tokens(tmp_path) == tokens(tmp_path, model_impl="transformers") == hf_greedy(model, PROMPT, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_reads_its_part_of_them(kind, tmp_path):
    as_in_memory(kind, tmp_path / "one")
    apart = tmp_path / "apart"
    model = make_hf_model(kind)
    model.save_pretrained(apart)
    spec = decoder_spec(model.config)
    with torch.device("meta"):
        shape = DecoderForCausalLM(spec, 16, LayerOps())
    for rank in range(2):
        shard = shard_of(spec, PLAIN, rank, 2)
        one, other = (
            dict(read_tensors(check_checkpoint(shape, read_heads(tmp_path / name)), shard)) for name in ("one", "apart")
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("change", [lambda each: each.mT.contiguous(), lambda each: each[:3]])
def test_experts_in_another_layout_are_refused_with_the_way_out(change, tmp_path):
    as_in_memory("mixtral", tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    edit_tensors(tmp_path, lambda t: t.update({name: change(t[name])}))
    with pytest.raises(ModelLoadError, match=f"no place for: {name} .*; model_impl='transformers' reads others"):
        tokens(tmp_path)


@pytest.mark.parametrize("wrap", ["module.{}", "_orig_mod.{}", "module._orig_mod.{}", "{}"])
def test_what_wrappers_put_before_a_name_is_not_part_of_it(wrap, tmp_path):
    def edit(tensors):
        inside = {name.replace("layers.1.", "layers.1._orig_mod."): each for name, each in tensors.items()}
        tensors.clear()
        tensors.update({wrap.format(name): each for name, each in inside.items()})

    assert tokens(edit_tensors(make_hf_folder(tmp_path), edit)) == hf_greedy(make_hf_model("qwen3"), PROMPT, 24)


def test_a_tensor_under_two_names_is_refused(tmp_path):
    folder = make_hf_folder(tmp_path)
    edit_tensors(folder, lambda t: t.update({"module.model.norm.weight": t["model.norm.weight"].clone()}))
    with pytest.raises(ModelLoadError, match=r"has model\.norm\.weight twice: as .*module\.model\.norm\.weight"):
        tokens(folder)


@pytest.mark.parametrize(
    "name", ["attn.k_scale", "k_scale", "kv_scale", "k_proj.k_scale", "v_proj.output_scale", "attn.q_scale"]
)
def test_scales_of_a_cache_are_left_out_with_a_line(name, tmp_path, caplog):
    folder = make_hf_folder(tmp_path)
    name = f"model.layers.0.self_attn.{name}"
    edit_tensors(folder, lambda t: t.update({name: torch.tensor(0.02)}))
    assert tokens(folder) == hf_greedy(make_hf_model("qwen3"), PROMPT, 24)
    assert our_warnings(caplog)[:1] == [f"1 scales for a KV cache of 8 bits are not used, {name} among them"]


def test_a_bias_of_zeros_beside_codes_is_left_out(tmp_path):
    name = f"{LAYER}.mlp.down_proj.bias"
    zeros = with_tensors(tmp_path, "gptq-4-bits", lambda t: t.update({name: torch.zeros(32, dtype=torch.float16)}))
    assert tokens(zeros, SMALL) == tokens(FOLDERS / "gptq-4-bits", SMALL)
    edit_tensors(zeros, lambda t: t[name][3:4].fill_(0.5))
    with pytest.raises(ModelLoadError, match=f"no place for: {name} .*; it is a bias that is not zero"):
        tokens(zeros)


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("gptq-4-bits", "quantize_config.json", {}),
        ("awq", "quant_config.json", {}),
        ("awq", "quant_config.json", {"bits": "w_bit", "group_size": "q_group_size"}),
    ],
)
def test_settings_in_a_file_of_their_own_are_read(name, file, change, tmp_path):
    folder = copied(tmp_path, name)
    wanted, path = tokens(folder, SMALL), folder / "config.json"
    config = json.loads(path.read_text())
    settings = config.pop("quantization_config")
    del settings["quant_method"]
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="not quantised, by quantization_config in config.json; load the"):
        tokens(folder)
    (folder / file).write_text(json.dumps({change.get(field, field): each for field, each in settings.items()}))
    assert tokens(folder, SMALL) == wanted
    (folder / file).write_text(json.dumps({"bits": 3}))
    with pytest.raises(ModelLoadError, match="quantization_config.bits 3 is not supported"):
        tokens(folder)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model.layers.0.self_attn.q_proj.lora_A.default.weight", "merge that into its model first, with peft"),
        ("base_model.model.model.norm.weight", "merge that into its model first, with peft"),
        (
            "model.layers.0.mlp.gate.qweight",
            "a router must not be quantised; load the checkpoint that it was made",
        ),
        (
            "model.layers.0.mlp.down_proj.weight.absmax",
            "a layer that is not quantised, by quantization_config",
        ),
        ("model.layers.0.mlp.down_proj.weight_scale_inv", "a layer that is not quantised, by quantization_config"),
        ("model.visual.patch_embed.weight", "a model for more than text"),
        ("score.weight", "a reward model's head"),
        ("model.layers.2.mlp.down_proj.weight", "num_hidden_layers in config.json is 2"),
        ("something.else", "is config.json the one that belongs to these weights?"),
    ],
)
def test_a_strangers_tensor_is_refused_with_its_cause(name, why, tmp_path):
    folder = make_hf_folder(tmp_path)
    edit_tensors(folder, lambda t: t.update({name: torch.zeros(2, 2)}))
    with pytest.raises(ModelLoadError, match=f"no place for: {name} .*; .*{why.replace('?', '.')}"):
        tokens(folder)
