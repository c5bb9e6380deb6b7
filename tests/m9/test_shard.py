"""The cut: the parts of all ranks are the checkpoint, bit by bit, and their sums the whole model's logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.layers.linear import PLAIN
from folovllm.layers.ops import LayerOps
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.registry import decoder_spec
from folovllm.models.shard import Shard, cut_tensor, shard_of
from folovllm.models.weights import build_model, iterate_safetensors
from folovllm.worker.kv_cache import KVCache
from tests.helpers import make_hf_folder, tiny_hf_config
from tests.m9.support import CPU, MEMORY, group_of, together

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"kind": "qwen3", "vocab_size": 259},
    "llama with biases": {"kind": "llama", "attention_bias": True, "mlp_bias": True, "vocab_size": 257},
    "tied": {"kind": "qwen3", "tie_word_embeddings": True, "intermediate_size": 90},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("cut"), **MODELS[request.param])


def shards_of(folder: Path, size: int) -> list[Shard]:
    spec = decoder_spec(AutoConfig.from_pretrained(folder))
    return [shard_of(spec, PLAIN, rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 4])  # 4: more ranks than KV heads
def test_the_parts_put_together_are_the_checkpoint(folder: Path, size: int) -> None:
    shards = shards_of(folder, size)
    parts = [dict(iterate_safetensors(folder, shard)) for shard in shards]
    for name, whole in iterate_safetensors(folder):
        built = torch.full_like(whole, float("nan"))
        for shard, have in zip(shards, parts, strict=True):
            cut = cut_tensor(name, tuple(whole.shape), shard)
            assert (cut is None) == (name not in have)
            if cut is not None:
                built[cut] = have[name]
        assert torch.equal(built, whole), name
    read = sum(part.numel() for have in parts for name, part in have.items() if "norm" not in name)
    once = sum(whole.numel() for name, whole in iterate_safetensors(folder) if "norm" not in name)
    repeated = (
        0
        if size == 2
        else sum(
            2 * whole.numel() // 2
            for name, whole in iterate_safetensors(folder)
            if ".k_proj." in name or ".v_proj." in name
        )
    )
    assert read == once + repeated  # nothing else is read twice


def test_a_cut_by_hand() -> None:
    spec = decoder_spec(tiny_hf_config("qwen3"))  # 4 heads and 2 KV heads of 16, an MLP of 96, 256 tokens
    shard = shard_of(spec, PLAIN, 3, 4)
    assert (shard.heads, shard.kv_heads, shard.columns, shard.tokens) == (
        range(3, 4), range(1, 2), range(72, 96), range(192, 256))  # fmt: skip
    layer, everything = "model.layers.0", slice(0, 64)
    assert cut_tensor(f"{layer}.self_attn.q_proj.weight", (64, 64), shard) == (slice(48, 64), everything)
    assert cut_tensor(f"{layer}.self_attn.k_proj.weight", (32, 64), shard) == (slice(16, 32), everything)
    assert cut_tensor(f"{layer}.self_attn.o_proj.weight", (64, 64), shard) == (everything, slice(48, 64))
    assert cut_tensor(f"{layer}.mlp.down_proj.weight", (64, 96), shard) == (everything, slice(72, 96))
    assert cut_tensor(f"{layer}.mlp.down_proj.bias", (64,), shard) is None  # rank 0 adds it
    assert cut_tensor("lm_head.weight", (256, 64), shard) == (slice(192, 256), everything)
    assert cut_tensor(f"{layer}.self_attn.q_norm.weight", (16,), shard) == (slice(0, 16),)
    # Four groups of 24 columns, and eight codes in a word.
    assert cut_tensor(f"{layer}.mlp.down_proj.weight_scale", (64, 4), shard) == (everything, slice(3, 4))
    assert cut_tensor(f"{layer}.mlp.down_proj.qweight", (12, 64), shard) == (slice(9, 12), everything)
    with pytest.raises(ValueError, match=r"down_proj\.scales \(3, 64\) cannot be cut at 72 and 96 of 96"):
        cut_tensor(f"{layer}.mlp.down_proj.scales", (3, 64), shard)


@pytest.mark.parametrize(
    ("over", "size", "said"),
    [
        ({}, 3, "tensor_parallel_size must divide the model's 4 attention heads, got 3"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, 2, "must divide the model's 3 KV heads, or be a multi"),
        ({"intermediate_size": 3}, 4, "tensor_parallel_size must be at most 3"),
    ],
)
def test_what_cannot_be_cut_is_refused(over: dict[str, Any], size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shard_of(decoder_spec(tiny_hf_config("qwen3", **over)), PLAIN, 0, size)


def build(folder: Path, group: GroupCoordinator | None) -> DecoderForCausalLM:
    model = build_model(AutoConfig.from_pretrained(folder), 64, torch.float32, CPU, folder, ops=LayerOps(), group=group)
    KVCache(model, PagedTorchBackend, num_blocks=8, block_size=4, dtype=torch.float32, device=CPU)
    return model


def step() -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
    """A prompt of nine tokens, those at the ends of ranks' vocabularies among them."""
    ids = torch.tensor([0, 127, 128, 129, 64, 63, 191, 192, 255])
    table = torch.tensor([[3, 1, 5]], dtype=torch.int32)
    positions = torch.arange(9)
    slots = table[0].long()[positions // 4] * 4 + positions % 4
    starts, lens = torch.tensor([0, 9], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    return ids, positions, AttentionMetadata(starts, lens, slots, table, 9, 9)


@torch.inference_mode()
def added_here(models: list[DecoderForCausalLM]) -> torch.Tensor:
    """Logits by the ranks' modules, one after the other in this process, which adds their products in their order."""

    def add(parts: list[torch.Tensor]) -> torch.Tensor:
        total = parts[0].clone()
        for each in parts[1:]:
            total += each
        return total

    ids, positions, metadata = step()
    vectors = []
    for model in models:
        embedding: Any = model.model.embed_tokens
        rows = [
            embedding.weight[i - embedding.tokens.start] if i in embedding.tokens else torch.zeros(64)
            for i in ids.tolist()
        ]
        vectors.append(torch.stack(rows))
    x, residual, first = add(vectors), None, models[0].model
    rotary = first.rotary(positions)
    for number, layer in enumerate(first.layers):
        x, residual = layer.input_layernorm(x, residual)
        parts = []
        for model in models:
            attention: Any = model.model.layers[number].self_attn
            heads = attention.qkv_proj(x).view(9, -1, attention.head_size)
            qkv = first.ops.norm_rotary(heads, attention.qk_norm, rotary, attention.num_heads, attention.num_kv_heads)
            parts.append(
                attention.o_proj.method.inner.apply(attention.o_proj, attention.attn(*qkv, metadata).flatten(1))
            )
        x, residual = layer.post_attention_layernorm(add(parts), residual)
        mlps: list[Any] = [model.model.layers[number].mlp for model in models]
        x = add([mlp.down_proj.method.inner.apply(mlp.down_proj, mlp.silu_mul(mlp.gate_up_proj(x))) for mlp in mlps])
    hidden = first.norm(x, residual)[0]
    return torch.cat([PLAIN.apply(model.lm_head, hidden) for model in models], 1)


@pytest.mark.parametrize(("size", "kind"), [pytest.param(2, "memory", marks=MEMORY), (4, "gloo")])
def test_logits_have_the_bits_of_one_process_that_adds_the_parts(folder: Path, size: int, kind: str) -> None:
    groups = group_of(kind, size)
    models = [build(folder, group) for group in groups]

    @torch.inference_mode()
    def run(model: DecoderForCausalLM) -> torch.Tensor:
        ids, positions, metadata = step()
        return model.compute_logits(model(ids, positions, metadata))

    logits = together([lambda model=model: run(model) for model in models])
    assert torch.equal(logits[0], added_here(models))
    assert [len(each) for each in logits[1:]] == [0] * (size - 1)
    whole = run(build(folder, None))
    assert torch.allclose(logits[0], whole, atol=1e-4 * float(whole.abs().max()))
