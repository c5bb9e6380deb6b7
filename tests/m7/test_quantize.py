"""Folders that quantize() writes: what they hold, and what a model that is loaded from them says."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from folovllm import LLM, ModelConfig
from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.formats import FORMATS
from folovllm.model_loader import load_tokenizer
from folovllm.model_loader.quant_scheme import QuantScheme, read_scheme
from folovllm.models.registry import decoder_spec
from folovllm.quantize import folder as folders
from folovllm.quantize.calibration import make_windows
from folovllm.quantize.layerwise import EMBEDDED_TEXT, quantize
from folovllm.quantize.recipe import Recipe, quantization_config
from tests.helpers import (
    add_byte_tokenizer,
    hf_greedy,
    make_hf_folder,
    make_hf_model,
    no_warning_of_its_length,
    some,
    tiny_hf_config,
)
from tests.m7.support import FOLDERS, NAMES, PROMPTS, generate, oracle, read

RECIPES = {
    "gptq": {"method": "gptq", "group_size": 32},
    "awq": {"method": "awq", "group_size": 32},
    "rows": {"method": "gptq", "bits": 8, "group_size": -1},
    "smoothquant": {"method": "gptq", "w8a8": True, "smoothquant": 0.5},
    "head": {"method": "rtn", "group_size": 32, "head": True},
    "w8a8 and head": {"method": "rtn", "w8a8": True, "head": True},
    "rtn": {"method": "rtn", "group_size": 32, "symmetric": True},
    "w8a8": {"method": "rtn", "w8a8": True},
}
KINDS = {"gptq": "qwen2", "awq": "qwen2", "rows": "llama", "smoothquant": "llama"}
TIED = ("rtn", "w8a8", "head")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Texts that a model whose tokens are bytes can read."""
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = EMBEDDED_TEXT.read_text("utf-8").splitlines()[:40]
    path.write_text("\n".join(lines), "utf-8")
    return path


def model(tmp_path, kind="qwen3", **over):
    """A folder of bfloat16 with two query heads for each head of keys, and with biases where the kind has them."""
    values = {"vocab_size": 260, "dtype": torch.bfloat16, **over}
    folder = make_hf_folder(tmp_path, kind, **values)
    add_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory, text):
    """(the model, what was written, its report), by the recipe's name, made once."""
    done = {}

    def of(name):
        if name not in done:
            place = tmp_path_factory.mktemp(name)
            source = model(place, KINDS.get(name, "qwen3"), tie_word_embeddings=name in TIED)
            report = quantize(str(source), place / "out", Recipe.from_options(**RECIPES[name]), text)
            done[name] = source, place / "out", report
        return done[name]

    return of


@pytest.mark.parametrize("name", some(RECIPES, 6))
def test_tokens_are_hugging_faces_with_the_weights_that_are_meant(name, made):
    _, out, _ = made(name)
    expected = [hf_greedy(oracle(out), ids, 16) for ids in PROMPTS]
    assert generate(LLM(out, dtype="float32", device="cpu", skip_tokenizer_init=True)) == expected


def hugging_face_loss(model, windows):
    """Mean loss of the held-out windows' tokens that count."""
    losses = []
    for ids, first in windows[3::4]:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        losses += [-logits[at - 1, ids[at]].item() for at in range(first, len(ids))]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("name", some(RECIPES, 6))
def test_losses_are_hugging_faces(name, made, text):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, out, report = made(name)
    windows = make_windows(text, AutoTokenizer.from_pretrained(source), 512)
    before = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    assert report.loss_before == pytest.approx(hugging_face_loss(before, windows), abs=1e-4)
    assert report.loss_after == pytest.approx(hugging_face_loss(oracle(out), windows), abs=1e-4)
    assert report.held_out_tokens == sum(len(ids) for ids, _ in windows[3::4])
    assert report.calibration_tokens + report.held_out_tokens == sum(len(ids) for ids, _ in windows)


def test_a_text_longer_than_the_models_longest_is_cut_without_a_warning(text, caplog):
    tokenizer = load_tokenizer(ModelConfig("embedded"))
    tokenizer.model_max_length = 50
    with no_warning_of_its_length(tokenizer, caplog):
        assert all(len(window.ids) <= 50 for window in make_windows(text, tokenizer, 50))


@pytest.mark.parametrize("name", some(RECIPES, 6))
def test_only_a_fold_changes_what_is_not_rounded(name, made):
    source, out, report = made(name)
    assert abs(report.loss_rise) < 0.5  # a scale on one side only makes another model: several nats
    stored, was = load_file(out / "model.safetensors"), load_file(source / "model.safetensors")
    same = [key for key in was if key in stored and torch.equal(stored[key], was[key])]
    changed = {key for key in was if key.endswith(("norm.weight", "bias"))} - {*same}
    assert bool(changed) == (name in ("awq", "smoothquant"))
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= {*same}
    assert all(stored[key].dtype == was[key].dtype for key in changed)


@pytest.mark.parametrize("name", some(RECIPES, 6))
def test_config_json_says_how_weights_lie(name, made):
    source, out, _ = made(name)
    recipe = Recipe.from_options(**RECIPES[name])
    before, after = (json.loads((each / "config.json").read_text()) for each in (source, out))
    assert read_scheme(after.pop("quantization_config")) == recipe.scheme
    assert after == before | ({"tie_word_embeddings": False} if "head" in name else {})
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (out / "generation_config.json").read_bytes() == (source / "generation_config.json").read_bytes()


def test_a_tied_head_gets_codes_of_its_own_and_the_embedding_stays(made):
    source, out, report = made("head")
    stored, was = load_file(out / "model.safetensors"), load_file(source / "model.safetensors")
    table = was["model.embed_tokens.weight"]
    assert "lm_head.weight" not in was
    assert torch.equal(stored["model.embed_tokens.weight"], table)
    codes = FORMATS["pack-quantized"].read(
        {kind: stored[f"lm_head.{kind}"] for kind in ("weight_packed", "weight_scale", "weight_shape")},
        QuantScheme("pack-quantized", 8, 32, True),
        "lm_head",
    )
    off = (codes.dequantize() - table.float()).abs().unflatten(1, (-1, 32)) / codes.scale[..., None]
    assert off.max() < 0.501 + 127 * 2**-9  # half a code, and at the group's end what bfloat16 takes off the scale
    assert report.head_bits == 8


def test_errors_of_all_layers_are_reported_the_largest_first(made):
    _, out, report = made("gptq")
    errors = [each.error for each in report.errors]
    assert errors == sorted(errors, reverse=True)
    assert 0.001 < errors[-1] < errors[0] < 0.3
    assert len({each.name for each in report.errors}) == 14
    tensors = load_file(out / "model.safetensors")
    kinds = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")
    packed = sum(tensors[f"{each.name}.{kind}"].nbytes for each in report.errors for kind in kinds)
    assert report.linear_bytes_after == packed
    assert report.bytes_after == (out / "model.safetensors").stat().st_size


@pytest.mark.parametrize("name", [name for name in NAMES if "quantized" in name])
def test_what_compressed_tensors_wrote_is_written_bit_for_bit(name):
    """From the codes that were read of its folder."""
    scheme = read_scheme(json.loads((FOLDERS / name / "config.json").read_text())["quantization_config"])
    stored, found = load_file(FOLDERS / name / "model.safetensors"), {}
    for path, layer in read(FOLDERS / name).named_modules():
        if not hasattr(layer, "codes"):
            continue
        start = 0
        for part, outs in layer.parts.items():
            rows = slice(start, start := start + outs)
            codes = layer.codes
            zero = None if codes.zero is None else codes.zero[rows]
            own = Codes(codes.values[rows], codes.scale[rows], zero)
            parent = f"{path.rpartition('.')[0]}.{part}" if part else path
            for kind, tensor in FORMATS[scheme.format].write(own, scheme, torch.float16).items():
                found[f"{parent}.{kind}"] = tensor
    assert len(found) > 10
    for key, tensor in found.items():
        assert torch.equal(tensor, stored[key]), key
        assert tensor.dtype == stored[key].dtype, key


@pytest.mark.exhaustive
def test_shards_hold_what_one_file_does(tmp_path, text, monkeypatch):
    source = model(tmp_path)
    recipe = Recipe.from_options(method="rtn", group_size=32)
    quantize(str(source), tmp_path / "one", recipe, text)
    monkeypatch.setattr(folders, "SHARD_BYTES", 20_000)
    sharded = shutil.copytree(source, tmp_path / "sharded")
    make_hf_model("qwen3", vocab_size=260, dtype=torch.bfloat16).save_pretrained(sharded, max_shard_size="50KB")
    (sharded / "model.safetensors").unlink()
    quantize(str(sharded), tmp_path / "many", recipe, text)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(tmp_path.glob("many/*.safetensors"))
    assert [file.name for file in files] == sorted({*index.values()})
    assert len(files) == 3
    many = {key: tensor for file in files for key, tensor in load_file(file).items()}
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert many.keys() == one.keys() == index.keys()
    assert all(torch.equal(many[key], one[key]) for key in one)
    tokens = [generate(LLM(tmp_path / each, dtype="float32", skip_tokenizer_init=True)) for each in ("one", "many")]
    assert tokens[0] == tokens[1]


def test_layers_are_told_one_by_one(tmp_path, text):
    told = []
    recipe = Recipe.from_options(method="rtn", group_size=32)
    quantize(str(model(tmp_path)), tmp_path / "out", recipe, text, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_gptq_costs_the_embedded_model_less_than_round_to_nearest(tmp_path):
    rises = {}
    for method in ("rtn", "gptq"):
        recipe = Recipe.from_options(method=method, symmetric=True)
        report = quantize("embedded", tmp_path / method, recipe)
        rises[method] = report.loss_rise
        assert report.loss_before == pytest.approx(0.24, abs=0.01)
    assert 0 < rises["gptq"] < 0.75 * rises["rtn"] < 0.01


@pytest.fixture(scope="module")
def quarter(tmp_path_factory):
    """Every fourth of the embedded model's texts: 2,900 tokens are held out, and losses are as over all within 1%."""
    path = tmp_path_factory.mktemp("text") / "quarter.jsonl"
    path.write_text("\n".join(EMBEDDED_TEXT.read_text("utf-8").splitlines()[::4]), "utf-8")
    return path


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_embedded_models_head_in_8_bits_says_what_hugging_face_says(tmp_path, quarter):
    recipe = Recipe.from_options(method="rtn", symmetric=True, head=True)
    report = quantize("embedded", tmp_path / "out", recipe, quarter)
    assert 0 < report.loss_rise < 0.02
    assert generate(LLM(tmp_path / "out", dtype="float32", device="cpu")) == [
        hf_greedy(oracle(tmp_path / "out"), ids, 16) for ids in PROMPTS
    ]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_eight_bits_cost_the_embedded_model_nothing(tmp_path, quarter):
    report = quantize("embedded", tmp_path / "out", Recipe.from_options(method="rtn", w8a8=True), quarter)
    assert abs(report.loss_rise) < 0.001
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config == quantization_config(Recipe.from_options(w8a8=True).scheme)


@pytest.mark.parametrize(
    ("hidden", "size", "group"), [(576, 1536, 64), (256, 384, 128), (64, 96, 32), (24, 40, 8), (20, 44, -1)]
)
def test_groups_are_as_large_as_a_model_lets_them_be(hidden, size, group):
    """576: SmolLM2-135M's. All columns of a layer are in whole groups of one size, of 128 at most."""
    over = {"hidden_size": hidden, "intermediate_size": size, "num_attention_heads": 1, "head_dim": hidden}
    spec = decoder_spec(tiny_hf_config("llama", **over, num_key_value_heads=1))
    scheme = Recipe.from_options(head=True).fitted(spec).scheme
    assert scheme.head is not None
    assert (scheme.group_size, scheme.head.group_size) == (group, group)
    with pytest.raises(ValueError, match=r"group_size must divide the inputs of each layer \(.*\), got 1024; "):
        Recipe.from_options(group_size=1024).fitted(spec)


def test_its_own_defaults_do_for_a_model_of_any_size(tmp_path):
    source = make_hf_folder(tmp_path, "llama", hidden_size=48, intermediate_size=80, head_dim=12)
    report = quantize(str(source), tmp_path / "out", Recipe.from_options(method="rtn"))
    settings = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["quantization_config"]
    assert report.group_size == read_scheme(settings).group_size == 16
