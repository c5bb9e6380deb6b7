"""Our models against Hugging Face's on the same weights, and every way a checkpoint can be wrong."""

from __future__ import annotations

import shutil

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig

from folovllm.attention.backends.dense import DenseBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.errors import ModelLoadError
from folovllm.models.registry import SWITCHES, decoder_spec
from folovllm.models.weights import UNWANTED_FILES, WANTED_FILES, build_model
from tests.helpers import edit_config, edit_tensors, make_hf_folder, make_hf_model, tiny_hf_config

CPU = torch.device("cpu")
CAPACITY = 128
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
MODELS = {
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied, yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "llama": ("llama", {}),
    "llama 3 scaling": ("llama", {"rope_parameters": LLAMA3}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "GQA 1": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    "GQA 4": ("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "GQA 8": ("qwen2", {"num_attention_heads": 8, "num_key_value_heads": 1}),
}


def build(folder, **kwargs):
    return build_model(AutoConfig.from_pretrained(folder), 256, torch.float32, CPU, folder, **kwargs)


def flat_logits(model, spans, cache_dtype=torch.float32):
    """Logits of every position; `spans` are the token ids of sequences that start from nothing, each in its block."""
    first = model.attention_layers[0]
    backend = DenseBackend(first.num_heads, first.num_kv_heads, first.head_size, first.scale)
    for layer in model.attention_layers:
        layer.bind(backend, torch.zeros(backend.kv_cache_shape(len(spans), CAPACITY), dtype=cache_dtype))
    lengths = [len(span) for span in spans]
    positions = torch.cat([torch.arange(n) for n in lengths])
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        slot_mapping=torch.cat([i * CAPACITY + torch.arange(n) for i, n in enumerate(lengths)]),
        block_tables=torch.arange(len(spans), dtype=torch.int32)[:, None],
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )
    with torch.inference_mode():
        return model.compute_logits(model(torch.cat(spans), positions, metadata))


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_flat_batch_equal_hugging_face(name, tmp_path):
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    spans = [torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(n)) for n in (7, 1, 100)]
    with torch.inference_mode():
        want = torch.cat([oracle(span[None]).logits[0] for span in spans])
    got = flat_logits(build(folder), spans)
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize("name", ["qwen3 tied", "qwen2", "llama with biases"])
def test_bfloat16_logits_are_near_float32_on_the_same_weights(name, tmp_path):
    """Whether this CPU has bf16 units or not."""
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, dtype=torch.bfloat16, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = build_model(AutoConfig.from_pretrained(folder), 256, torch.bfloat16, CPU, folder)
    spans = [torch.arange(n) for n in (1, 40)]
    with torch.inference_mode():
        want = torch.cat([oracle(span[None]).logits[0] for span in spans])
    error = (flat_logits(model, spans, torch.bfloat16).float() - want).norm() / want.norm()
    assert error < 0.03  # bfloat16 rounds to 1 part in 256, and the roundings of two layers add up


def test_mistral_without_a_sliding_window_is_a_llama(tmp_path):
    values = {k: v for k, v in tiny_hf_config("llama").to_dict().items() if k in ("vocab_size", "hidden_size")}
    config = MistralConfig(
        **values, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, sliding_window=None,
    )  # fmt: skip
    oracle = AutoModelForCausalLM.from_config(config).eval()
    oracle.save_pretrained(tmp_path / "mistral")
    span = torch.arange(20)
    with torch.inference_mode():
        want = oracle(span[None]).logits[0]
    torch.testing.assert_close(flat_logits(build(tmp_path / "mistral"), [span]), want, atol=1e-5, rtol=1e-5)


def test_shards_load_as_one_file_does(tmp_path):
    one, many = make_hf_folder(tmp_path / "one"), make_hf_folder(tmp_path / "many", sharded=True)
    assert len(list(many.glob("*.safetensors"))) > 1
    span = [torch.arange(30)]
    torch.testing.assert_close(flat_logits(build(one), span), flat_logits(build(many), span), atol=0, rtol=0)


def test_weights_are_converted_to_the_models_dtype(tmp_path):
    folder = make_hf_folder(tmp_path, dtype=torch.bfloat16)
    model = build(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    stored = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(model.model.norm.weight.data, stored.float())


def test_a_missing_tensor_is_named(tmp_path):
    folder = edit_tensors(
        make_hf_folder(tmp_path), lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight")
    )
    with pytest.raises(ModelLoadError, match=r"lacks 1 tensor\(s\): model.layers.1.self_attn.k_proj.weight"):
        build(folder)


def test_an_extra_tensor_is_named(tmp_path):
    folder = edit_tensors(
        make_hf_folder(tmp_path), lambda tensors: tensors.update({"model.layers.9.extra": torch.zeros(2, 3)})
    )
    with pytest.raises(ModelLoadError, match=r"no place for: model.layers.9.extra"):
        build(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path):
    folder = edit_tensors(
        make_hf_folder(tmp_path), lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)})
    )
    with pytest.raises(ModelLoadError, match=r"model.norm.weight has shape \(63,\), .* asks for \(64,\)"):
        build(folder)


def test_tensors_that_follow_from_others_may_be_there(tmp_path):
    def edit(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    build(edit_tensors(make_hf_folder(tmp_path, tie_word_embeddings=True), edit))


def test_a_snapshot_leaves_out_what_nobody_reads():
    files = [
        "README.md", "config.json", "tokenizer.json", "model-1-of-2.safetensors", "model.safetensors.index.json",
        "consolidated.safetensors", "original/model.safetensors", "onnx/config.json", "pytorch_model.bin",
    ]  # fmt: skip
    kept = filter_repo_objects(files, allow_patterns=WANTED_FILES, ignore_patterns=UNWANTED_FILES)
    assert list(kept) == files[1:5]


def test_an_unknown_architecture_lists_the_known_ones(tmp_path):
    folder = edit_config(make_hf_folder(tmp_path), architectures=["MambaForCausalLM"])
    with pytest.raises(ModelLoadError, match=r"MambaForCausalLM.*known: Qwen3ForCausalLM, .*LlamaForCausalLM"):
        build(folder)


def test_the_model_type_of_every_dense_architecture_is_known():
    for name in ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"):
        config, switches = tiny_hf_config("llama"), SWITCHES[name]
        config.model_type, config.architectures = name.removesuffix("ForCausalLM").lower(), None
        spec = decoder_spec(config)
        assert {switch: getattr(spec, switch) for switch in switches(config)} == switches(config)


def test_dummy_weights_are_the_same_for_the_same_seed():
    config = tiny_hf_config("qwen3")
    config.architectures = ["Qwen3ForCausalLM"]

    def weights(seed):
        model = build_model(config, 64, torch.float32, CPU, None, seed=seed)
        return torch.cat([p.flatten() for p in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_loaded_model_needs_its_folder_no_more(tmp_path):
    folder = make_hf_folder(tmp_path)
    model = build(folder)
    before = flat_logits(model, [torch.arange(5)])
    shutil.rmtree(folder)
    assert torch.equal(flat_logits(model, [torch.arange(5)]), before)


def test_the_fixture_wanders():
    """A model that repeats one token would make every parity test blind to wrong positions."""
    oracle = make_hf_model("qwen3")
    with torch.inference_mode():
        tokens = oracle(torch.arange(100)[None]).logits[0].argmax(-1)
    assert len(set(tokens.tolist())) > 20
