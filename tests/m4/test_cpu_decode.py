"""A decoder on a CPU, in the compiled kernels and in plain torch: Hugging Face's tokens in float32,
its logits in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.compiled_ops import CompiledLinear, CompiledOps, multiplies_pairs
from folovllm.layers.linear import Embedding, Linear, LMHead
from folovllm.layers.ops import LayerOps
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.weights import build_model
from tests.helpers import hf_greedy, make_hf_folder, names, thinned
from tests.m1.test_layers import TOLERANCE, relative_error
from tests.m1.test_models import MODELS, flat_logits
from tests.m4.cpu_target import REASON

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS_EACH = 16, 8
PROMPT_LENGTHS = (1, 17, 40)
WAYS = ["torch", "compiled"]
needs_kernels = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")


def build(folder: Path, dtype: torch.dtype = torch.float32, way: str = "compiled") -> DecoderForCausalLM:
    if way == "compiled" and REASON is not None:
        pytest.skip(f"the CPU kernels cannot run: {REASON}")
    ops = CompiledOps(dtype) if way == "compiled" else LayerOps()
    return build_model(AutoConfig.from_pretrained(folder), 256, dtype, CPU, folder, ops=ops)


class Decoding:
    """Sequences of a model, computed together over a paged cache: their prompts at once, then a token each a step."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        prompts: list[list[int]],
        dtype: torch.dtype = torch.float32,
        kind: type[PagedTorchBackend] = PagedTorchBackend,
    ) -> None:
        self.model, self.tokens = model, [list(prompt) for prompt in prompts]
        self.done = [0] * len(prompts)
        # Every second block: no two of a sequence lie side by side.
        self.tables = 1 + 2 * torch.arange(len(prompts) * BLOCKS_EACH).view(len(prompts), BLOCKS_EACH)
        first = model.attention_layers[0]
        backend = kind(first.num_heads, first.num_kv_heads, first.head_size, first.scale)
        for layer in model.attention_layers:
            shape = backend.kv_cache_shape(2 * (1 + self.tables.numel()), BLOCK_SIZE)
            layer.bind(backend, torch.full(shape, torch.nan, dtype=dtype))

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        """Logits of each sequence's last token."""
        lens = torch.tensor([len(tokens) for tokens in self.tokens], dtype=torch.int32)
        spans = [torch.arange(start, len(tokens)) for start, tokens in zip(self.done, self.tokens, strict=True)]
        starts = torch.tensor([0, *(len(span) for span in spans)]).cumsum(0, dtype=torch.int32)
        slots = [
            table[span // BLOCK_SIZE] * BLOCK_SIZE + span % BLOCK_SIZE
            for table, span in zip(self.tables, spans, strict=True)
        ]
        metadata = AttentionMetadata(
            query_start_loc=starts,
            seq_lens=lens,
            slot_mapping=torch.cat(slots),
            block_tables=self.tables.int(),
            max_query_len=max(len(span) for span in spans),
            max_seq_len=int(lens.max()),
        )
        ids = torch.cat([torch.tensor(tokens)[span] for tokens, span in zip(self.tokens, spans, strict=True)])
        self.done = [len(tokens) for tokens in self.tokens]
        return self.model.compute_logits(self.model(ids, torch.cat(spans), metadata)[starts[1:].long() - 1])

    def greedy(self, num_tokens: int) -> list[list[int]]:
        for _ in range(num_tokens):
            for tokens, token in zip(self.tokens, self.step().argmax(dim=-1).tolist(), strict=True):
                tokens.append(token)
        return [tokens[-num_tokens:] for tokens in self.tokens]


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize(("name", "way"), thinned(names(MODELS), names(WAYS)))
def test_greedy_tokens_equal_hugging_face(name: str, way: str, tmp_path: Path) -> None:
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = prompts_of(PROMPT_LENGTHS)
    assert Decoding(build(folder, way=way), prompts).greedy(32) == [hf_greedy(oracle, prompt, 32) for prompt in prompts]


@pytest.mark.parametrize(("name", "way"), thinned(names(["qwen3 tied", "qwen2", "llama with biases"]), names(WAYS)))
@pytest.mark.usefixtures("either_cpu")
def test_bfloat16_logits_are_near_float32_on_the_same_weights(name: str, way: str, tmp_path: Path) -> None:
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, dtype=torch.bfloat16, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model, spans = build(folder, torch.bfloat16, way), [torch.arange(n) for n in (1, 40)]
    with torch.inference_mode():
        want = torch.cat([oracle(span[None]).logits[0] for span in spans])
    error = (flat_logits(model, spans, torch.bfloat16).float() - want).norm() / want.norm()
    assert error < 0.03  # bfloat16 rounds to 1 part in 256, and the roundings of two layers add up


@needs_kernels
def test_without_bf16_units_only_keys_and_values_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 flows between the layers."""
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "no")
    folder = make_hf_folder(tmp_path, "qwen3", dtype=torch.bfloat16)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    model = build(folder, torch.bfloat16)
    assert model.model.embed_tokens.weight.dtype == torch.bfloat16
    assert model.model.ops.flowing == torch.float32
    decoding = Decoding(model, prompts_of(PROMPT_LENGTHS), torch.bfloat16)
    decoding.step()
    for tokens in decoding.tokens:
        tokens.append(7)
    got = decoding.step().double()
    with torch.inference_mode():
        want = torch.cat([oracle(torch.tensor([tokens])).logits[:, -1] for tokens in decoding.tokens])
    assert float((got - want).norm() / want.norm()) < 0.01


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 2, 17])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("either_cpu")
def test_a_compiled_layer_computes_the_linear_layer_from_one_copy_of_its_weight(dtype, num_tokens, bias):
    layer = Linear(64, 96, bias=bias, method=CompiledLinear()).to(dtype)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(num_tokens, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    want = torch.nn.functional.linear(
        x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()
    )
    before = layer.weight
    layer.method.process_weights_after_loading(layer)
    got = layer(x)
    assert got.dtype == dtype
    assert relative_error(got, want) < TOLERANCE[dtype]
    assert layer.weight is not before
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"][: 1 + bias]
    assert layer.weight.dtype == dtype


@needs_kernels
def test_a_tied_head_leaves_the_embedding_its_weight():
    x, embedding, head = torch.randn(2, 8), Embedding(16, 8), LMHead(8, 16, CompiledLinear())
    embedding.weight.data.normal_()
    head.tie_to(embedding)
    head.method.process_weights_after_loading(head)
    assert embedding.weight.shape == (16, 8)
    torch.testing.assert_close(head(x), x @ embedding.weight.T)


@needs_kernels
def test_a_weight_that_cannot_be_packed_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("folovllm.layers.compiled_ops.pack", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        build(make_hf_folder(tmp_path))


def test_without_kernels_nothing_multiplies_pairs_and_no_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    with pytest.raises(ValueError, match="^model must be one that the compiled CPU kernels can run: FOLOVLLM_CPU_KER"):
        CompiledOps(torch.float32)
    assert not multiplies_pairs(torch.float32)
