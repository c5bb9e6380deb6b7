"""A decoder fused for CPUs: Hugging Face's tokens in float32, and its logits in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.linear import Linear
from folovllm.layers.linear_kernels import PackedLinear, PackedLMHead
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.models import fused_cpu
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.fused_cpu import can_fuse_cpu, fuse_cpu
from folovllm.models.packing import pack_in_threads, widen_activations
from folovllm.models.registry import get_model_class
from folovllm.models.weights import build_model
from tests.helpers import hf_greedy, make_hf_folder, tiny_hf_config
from tests.m1.test_models import MODELS

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS_EACH = 16, 8
PROMPT_LENGTHS = (1, 17, 40)


def build(folder: Path, dtype: torch.dtype = torch.float32, *, fuse: bool = True) -> DecoderForCausalLM:
    model = build_model(AutoConfig.from_pretrained(folder), 256, dtype, CPU, folder)
    widen_activations(model)
    if fuse:
        fuse_cpu(model)
    pack_in_threads(model)
    return model


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


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_hugging_face(name: str, tmp_path: Path) -> None:
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = prompts_of(PROMPT_LENGTHS)
    assert Decoding(build(folder), prompts).greedy(32) == [hf_greedy(oracle, prompt, 32) for prompt in prompts]


def test_weights_above_the_limit_are_computed_right_beside_small_ones(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, "qwen3", std=0.05, hidden_size=256, intermediate_size=640)
    model = build(folder)
    kinds = {type(module) for module in model.modules() if isinstance(module, Linear)}
    assert kinds == {PackedLinear, fused_cpu.SmallLinear, PackedLMHead}
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = prompts_of(PROMPT_LENGTHS)
    assert Decoding(model, prompts).greedy(8) == [hf_greedy(oracle, prompt, 8) for prompt in prompts]


@pytest.mark.parametrize("name", ["qwen3 tied", "llama with biases"])
def test_bfloat16_logits_are_as_near_to_float64_as_those_of_the_model_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "no")  # with bf16 units activations are bfloat16, and nothing is fused
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, dtype=torch.bfloat16, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    prompts = prompts_of(PROMPT_LENGTHS)
    errors = []
    for fuse in (False, True):
        decoding = Decoding(build(folder, torch.bfloat16, fuse=fuse), prompts, torch.bfloat16)
        decoding.step()
        for tokens in decoding.tokens:
            tokens.append(7)
        got = decoding.step().double()
        with torch.inference_mode():
            want = torch.cat([oracle(torch.tensor([tokens])).logits[:, -1] for tokens in decoding.tokens])
        errors.append(float((got - want).norm() / want.norm()))
    plain, fused = errors
    assert fused < 0.01  # K and V are rounded to 1 part in 256
    assert fused < 1.5 * plain


@pytest.mark.parametrize("size", [8, 100, 1024])
@pytest.mark.parametrize("length", [0.0, 1e-4, 1.0, 1e4])
def test_the_norm_is_rms_norm_down_to_rows_of_zeros(size: int, length: float) -> None:
    """At 1e-4, eps is a hundred times the mean of the squares: an eps that is lost would show."""
    norm = RMSNorm(size, 1e-6)
    norm.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(1)) * length
    want = F.rms_norm(x.double(), (size,), norm.weight.double(), 1e-6)
    norm.__class__ = fused_cpu.LeanRMSNorm
    norm.prepare()
    torch.testing.assert_close(norm(x).double(), want, rtol=1e-6, atol=1e-9)


def test_each_head_is_normalised_by_itself_and_the_projection_stays_as_it_is() -> None:
    norm = QKNorm(3, 2, 16, 1e-6)
    norm.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    heads = torch.randn(4, 7, 16, generator=torch.Generator().manual_seed(1))
    before, qk = heads.clone(), heads[:, :5]
    weight = torch.cat([norm.weight[0].expand(3, -1), norm.weight[1].expand(2, -1)]).double()
    want = F.rms_norm(qk.double(), (16,), None, 1e-6) * weight
    norm.__class__ = fused_cpu.LeanQKNorm
    norm.prepare()
    torch.testing.assert_close(norm(qk).double(), want, rtol=1e-6, atol=1e-9)
    assert torch.equal(heads, before)


def test_the_residual_is_added_where_it_lies() -> None:
    norm = RMSNorm(8, 1e-6)
    norm.weight.data.fill_(1.0)
    norm.__class__ = fused_cpu.LeanRMSNorm
    norm.prepare()
    x, residual = torch.ones(2, 8), torch.full((2, 8), 2.0)
    out, stream = norm.add_and_norm(x, residual)
    assert stream is residual
    assert torch.equal(residual, torch.full((2, 8), 3.0))
    assert torch.equal(x, torch.ones(2, 8))
    torch.testing.assert_close(out, torch.ones(2, 8))
    assert norm.add_and_norm(x, None)[1] is x


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_small_product_is_exact_in_its_weight_and_keeps_one_copy_of_it(dtype: torch.dtype, bias: bool) -> None:
    linear = Linear(24, 10, bias=bias).to(dtype)
    for parameter in linear.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
    want = F.linear(x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double())
    linear.__class__ = fused_cpu.SmallLinear
    linear.prepare()
    torch.testing.assert_close(linear(x).double(), want, rtol=1e-5, atol=1e-5)
    assert linear.weight.numel() == 0
    assert linear.weight.dtype == dtype


def test_a_decode_step_makes_fewer_calls(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, "qwen3")
    calls = []
    for fuse in (False, True):
        decoding = Decoding(build(folder, fuse=fuse), prompts_of((5,)))
        decoding.greedy(1)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:  # also sees what an operator calls inside
            decoding.step()
        calls.append(len(profiler.events()))
    plain, fused = calls
    assert fused < 0.85 * plain


def test_only_exact_classes_are_swapped_and_layers_that_are_packed_stay(tmp_path: Path) -> None:
    class MyNorm(RMSNorm):
        pass

    model = build(make_hf_folder(tmp_path), fuse=False)
    model.model.norm.__class__ = MyNorm
    packed = [module for module in model.modules() if type(module) is PackedLinear]
    assert fuse_cpu(model) == 2 * 5  # per layer: two norms, attention, its norm of heads, MLP
    assert type(model.model.norm) is MyNorm
    assert packed
    assert all(type(module) is PackedLinear for module in packed)
    assert fuse_cpu(model) == 0


def test_a_model_that_does_not_compute_in_float32_on_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_hf_config("qwen3")
    config.architectures = ["Qwen3ForCausalLM"]
    with torch.device("meta"):
        elsewhere = get_model_class(config)(config, 64)
    assert can_fuse_cpu(elsewhere) == "its weights are not on the CPU"
    model = build_model(config, 64, torch.float32, CPU, None)
    assert can_fuse_cpu(model) is None
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "no")
    model = build_model(config, 64, torch.bfloat16, CPU, None)
    widen_activations(model)
    assert can_fuse_cpu(model) is None
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "yes")
    model = build_model(config, 64, torch.bfloat16, CPU, None)
    widen_activations(model)
    with pytest.raises(ValueError, match="model must compute in float32 on a CPU .* torch.bfloat16"):
        fuse_cpu(model)
