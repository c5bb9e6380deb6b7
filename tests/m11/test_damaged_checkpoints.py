"""Checkpoints and configurations that contradict one another: Hugging Face's result, or a refusal by name."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from folovllm import LLMEngine, ModelConfig, ModelLoadError, SamplingParams
from folovllm.model_loader import resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.models.weights import build_model
from tests.helpers import edit_config, edit_tensors, hf_greedy, make_hf_folder, make_hf_model, tiny_hf_config
from tests.m1.test_models import CPU, flat_logits
from tests.m7.support import read
from tests.m7.test_head import changed, engine, with_a_head
from tests.m7.test_refusals import with_tensors

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
PROMPT = [5, 99, 17, 3, 200, 41]
# A value of every JSON type, and sizes at the edges and beyond.
WRONG_VALUES = [None, True, 0, -1, 3, 10**9, math.nan, "x", [], ["x"], {}]


def build(folder):
    """As an engine does, up to the model."""
    hf_config = load_hf_config(ModelConfig(str(folder)))
    return build_model(hf_config, resolve_max_model_len(hf_config, None), torch.float32, CPU, folder)


def tokens(folder, prompt=PROMPT, max_tokens=24, **kwargs):
    config = ModelConfig(str(folder), dtype="float32", device="cpu", skip_tokenizer_init=True, **kwargs)
    engine = LLMEngine(config)
    engine.add_request("r", {"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=max_tokens))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0].outputs[0].token_ids


def oracle(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


# --- a head of its own in a checkpoint that should have none


@pytest.mark.parametrize("sharded", [False, True])
def test_a_tied_model_with_a_head_of_its_own_uses_it(sharded, tmp_path):
    """tie_word_embeddings is true by mistake. Sharded, the embedding may come after the head or before it."""
    folder = make_hf_folder(tmp_path, sharded=sharded)
    edit_config(folder, tie_word_embeddings=True)
    assert not build(folder).lm_head.tied
    want = hf_greedy(oracle(folder), PROMPT, 24)
    assert want == hf_greedy(make_hf_model("qwen3"), PROMPT, 24)  # Hugging Face uses both, too
    assert tokens(folder) == want
    if not sharded:
        edit_tensors(folder, lambda t: t.pop(HEAD))
        assert tokens(folder) != want  # so the head does make a difference


def test_a_head_that_repeats_the_embedding_stays_tied(tmp_path):
    folder = make_hf_folder(tmp_path, tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.update({HEAD: t[EMBEDDING].clone()}))
    model = build(folder)
    assert model.lm_head.tied
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_a_tied_model_may_be_stored_by_its_head_alone(tmp_path):
    folder = make_hf_folder(tmp_path, tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.update({HEAD: t.pop(EMBEDDING)}))
    assert build(folder).lm_head.tied
    assert tokens(folder) == hf_greedy(oracle(folder), PROMPT, 24)


# --- which class


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_without_architectures_the_model_type_tells(kind, tmp_path):
    folder = make_hf_folder(tmp_path, kind)
    want = tokens(folder)
    assert tokens(edit_config(folder, architectures=None)) == want == hf_greedy(make_hf_model(kind), PROMPT, 24)


@pytest.mark.parametrize(("kind", "architecture"), [("qwen2", "LlamaForCausalLM"), ("llama", "Qwen3ForCausalLM")])
def test_an_architecture_of_another_model_type_is_refused(kind, architecture, tmp_path):
    """Hugging Face goes by model_type alone, so the two would compute different things."""
    folder = edit_config(make_hf_folder(tmp_path, kind), architectures=[architecture])
    with pytest.raises(ModelLoadError, match=f"'{architecture}'.* and model_type '{kind}' contradict each other"):
        build(folder)


# --- fields and sizes


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("num_key_value_heads", 3, r"must divide num_attention_heads \(4\), got 3"),
        ("num_attention_heads", 0, "must be positive, got 0"),
        ("head_dim", 17, "even"),
        ("hidden_act", "gelu", "must be 'silu' for qwen3, got 'gelu'"),
        ("rms_norm_eps", -1e-6, "must not be negative"),
        ("hidden_size", 10**9, "has shape .* the configuration asks for"),
        ("max_position_embeddings", 10**12, "max_model_len must be less, got 1000000000000: RoPE's angles take"),
    ],
)
def test_a_wrong_size_is_named(field, value, said, tmp_path):
    folder = edit_config(make_hf_folder(tmp_path), **{field: value})
    with pytest.raises(ModelLoadError, match=f"({field}.*)?{said}"):
        build(folder)


def test_swish_is_another_name_of_silu(tmp_path):
    build(edit_config(make_hf_folder(tmp_path), hidden_act="swish"))


def test_dummy_weights_larger_than_the_memory_are_refused():
    config = tiny_hf_config("qwen3", hidden_size=10**6, intermediate_size=10**9)
    with pytest.raises(ModelLoadError, match=r"the weights take \d+\.\d GiB, cpu has"):
        build_model(config, 64, torch.float32, CPU, None)


def test_a_tensor_without_the_models_prefix_is_read_unless_it_is_there_twice(tmp_path):
    bare = "layers.1.self_attn.k_proj.weight"
    folder = make_hf_folder(tmp_path)
    want = flat_logits(build(folder), [torch.arange(9)])
    edit_tensors(folder, lambda t: t.update({bare: t.pop(f"model.{bare}")}))
    assert torch.equal(flat_logits(build(folder), [torch.arange(9)]), want)
    edit_tensors(folder, lambda t: t.update({f"model.{bare}": t[bare].clone()}))
    with pytest.raises(ModelLoadError, match=rf"has model.{bare} twice: as {bare} and as model.{bare}"):
        build(folder)


def test_weights_that_a_folder_holds_twice_are_read_once(tmp_path):
    folder = make_hf_folder(tmp_path)
    want = flat_logits(build(folder), [torch.arange(9)])
    save_file({"layers.0.attention.wk.weight": torch.zeros(2, 3)}, folder / "consolidated.safetensors")
    assert torch.equal(flat_logits(build(folder), [torch.arange(9)]), want)


def test_a_truncated_file_is_named(tmp_path):
    folder = make_hf_folder(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match=r"model.safetensors cannot be read: .*; was it downloaded to its end\?"):
        build(folder)


def test_a_tensor_in_two_files_is_named(tmp_path):
    folder = make_hf_folder(tmp_path, sharded=True)
    one, other = sorted(folder.glob("*.safetensors"))[:2]
    name = next(iter(load_file(one)))
    edit_tensors(folder, lambda t: t.update({name: load_file(one)[name]}), other.name)
    with pytest.raises(ModelLoadError, match=f"{other.name} holds {name} once more"):
        build(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn])
def test_weights_without_their_scale_are_refused(dtype, tmp_path):
    folder = edit_tensors(make_hf_folder(tmp_path), lambda t: t.update({HEAD: t[HEAD].to(dtype)}))
    with pytest.raises(ModelLoadError, match=r"tensor lm_head\.weight holds \w+, the configuration asks for F64"):
        build(folder)


@pytest.mark.parametrize(
    ("name", "tensor", "dtype", "text"),
    [
        ("gptq-4-bits", "qweight", torch.int64, "holds I64, the configuration asks for I32"),
        ("gptq-4-bits", "scales", torch.int32, "holds I32, the configuration asks for F64 or F32 or F16 or BF16"),
        ("int-quantized", "weight", torch.float16, "holds F16, the configuration asks for I8"),
    ],
)
def test_codes_and_scales_of_another_dtype_are_refused(tmp_path, name, tensor, dtype, text):
    layer = "model.layers.0.mlp.down_proj"

    def edit(tensors):
        tensors[f"{layer}.{tensor}"] = tensors[f"{layer}.{tensor}"].to(dtype)

    with pytest.raises(ModelLoadError, match=f"{layer}.{tensor} {text}"):
        read(with_tensors(tmp_path, name, edit))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_wrong_field_is_refused_or_changes_nothing_that_hugging_face_does_not_change(kind, tmp_path):
    """Every field of the file with a value of every type. For llama, those alone that qwen3 has not."""
    folder = make_hf_folder(tmp_path, kind)
    original = json.loads((folder / "config.json").read_text())
    fields = [*original, "sliding_window", "layer_types", "partial_rotary_factor", "rope_scaling", "use_sliding_window"]
    if kind == "llama":
        fields = ["mlp_bias", "head_dim", "layer_types", "sliding_window", "pretraining_tp"]
    taken, refused_there, messages = set(), set(), []
    for field in fields:
        for value in WRONG_VALUES:
            edit_config(folder, **{field: value})
            try:
                model = build(folder)
            except ModelLoadError as error:
                messages.append(str(error))
                continue
            finally:
                (folder / "config.json").write_text(json.dumps(original))
            edit_config(folder, **{field: value})
            span = torch.tensor(PROMPT)[: model.model.rotary.cos_sin.shape[0]]
            try:
                with torch.inference_mode():
                    want = oracle(folder)(span[None]).logits[0]
            except Exception:
                refused_there.add(field)
                continue
            finally:
                (folder / "config.json").write_text(json.dumps(original))
            assert (flat_logits(model, [span]) - want).abs().max() < 1e-5 * want.abs().max(), (field, value)
            taken.add(field)
    assert refused_there <= {"pad_token_id"}  # we pad nothing
    assert len(taken) > 3
    assert not taken & {"hidden_size", "num_attention_heads", "quantization_config"}
    assert not [text for text in messages if "\n" in text]


def test_codes_for_a_tied_head_are_refused_with_the_way_out(tmp_path):
    def change(config, tensors):
        with_a_head(config, tensors)
        config["tie_word_embeddings"] = True

    with pytest.raises(ValueError, match="lm_head.weight_.*tie_word_embeddings in config.json must be false"):
        engine(changed(tmp_path, change))
