"""csrc/attention.cpp and prefill.cpp with windows, a soft-cap and sinks, in float64: no key before a window is read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from folovllm import LLM, ModelConfig, SamplingParams
from folovllm.attention.backend import AttentionExtras
from folovllm.attention.backends.cpu import CPUBackend
from folovllm.attention.backends.int8 import CPUInt8Backend, codes_of, scales_of
from folovllm.attention.backends.invariant import CPUInvariantBackend, TritonInvariantBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.engine.builder.batch_invariance import select_invariant_backend
from folovllm.models.registry import decoder_spec
from tests.helpers import make_hf_folder, thinned, tiny_hf_config
from tests.m4.cpu_target import relative_error, target  # noqa: F401

BLOCK = 16
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 5e-3}  # bfloat16: the result's own rounding
LENS = [1, 20, 63, 65, 130, 255, 257, 400, 700]  # around the ends of tiles of 64 keys and of parts of 256
SHAPES = {str(each): each for each in [(4, 2, 64), (3, 1, 48), (2, 2, 16), (6, 1, 256)]}  # heads, KV heads, their size
WINDOWS = {f"window of {each}": each for each in (1, 17, 64, 65, 256, 300)}
NEW = {"decodes": 1, "chunks": 40}
DTYPES = {
    f"{queries} on {cache}".replace("torch.", ""): (backend, queries, cache)
    for backend in (CPUBackend, CPUInt8Backend)
    for queries, cache in backend.dtypes
}


class Layer:
    """Keys and values of sequences in scattered blocks. A block in which no query sees a key is the null block, and all
    slots that no query sees hold NaN."""

    def __init__(self, backend, dtype, cache_dtype, shape, extras, lens, first_query):
        """first_query: of a sequence's length, the position from which on its queries are asked for."""
        self.heads, kv_heads, size = shape
        self.lens, self.dtype, self.extras, self.scale = lens, dtype, extras, 4 * size**-0.5
        self.backend = backend(self.heads, kv_heads, size, self.scale, extras)
        longest = -(-max(lens) // BLOCK)
        self.tables = torch.randperm(len(lens) * longest).view(len(lens), longest).int() + 1
        blocks = len(lens) * longest + 1
        self.cache = torch.empty(self.backend.kv_cache_shape(blocks, BLOCK), dtype=cache_dtype)
        self.cache.view(torch.uint8).fill_(255)  # NaN in each of the types; codes of -1 with scales of NaN
        self.q = [torch.randn(length, self.heads, size).to(dtype) for length in lens]
        self.kv = []
        for table, length in zip(self.tables, lens, strict=True):
            kv = torch.randn(2, length, kv_heads, size).to(dtype)
            first = max(0, first_query(length) + 1 - (extras.sliding_window or length))
            places = torch.arange(first, length)
            slots = table[places // BLOCK].long() * BLOCK + places % BLOCK
            self.backend.write(*kv[:, first:], self.cache, slots)
            kept = self.numbers()[:, slots // BLOCK, slots % BLOCK]
            self.kv.append(torch.cat([torch.zeros(2, first, kv_heads, size), kept], 1).double())
            table[: first // BLOCK] = 0

    def numbers(self):
        if self.cache.dtype != torch.int8:
            return self.cache
        return codes_of(self.cache) * scales_of(self.cache).unsqueeze(-1)

    def attend(self, parts):
        """The queries [first, end) of the sequences, in one step, [(sequence, first, end)]."""
        news = torch.tensor([0, *(end - first for _, first, end in parts)])
        lens = torch.tensor([end for _, _, end in parts], dtype=torch.int32)
        tables = self.tables[[seq for seq, _, _ in parts]]
        starts = news.cumsum(0, dtype=torch.int32)
        step = AttentionMetadata(starts, lens, torch.zeros(int(starts[-1])), tables, int(news.max()), int(lens.max()))
        q = torch.cat([self.q[seq][first:end] for seq, first, end in parts])
        return list(self.backend.forward(q, self.cache, step).tensor_split(starts[1:-1].long()))

    def exact(self, seq, first, end, extras):
        """In float64, the queries [first, end) of a sequence. Of keys and values, those that are kept."""
        k, v = (x[:end].repeat_interleave(self.heads // x.shape[1], 1) for x in self.kv[seq])
        scores = torch.einsum("qhd,khd->hqk", self.q[seq][first:end].double(), k) * self.scale
        if (cap := extras.logits_soft_cap) is not None:
            scores = cap * torch.tanh(scores / cap)
        behind = torch.arange(first, end)[:, None] - torch.arange(end)
        scores.masked_fill_((behind < 0) | (behind >= (extras.sliding_window or end)), -torch.inf)
        if extras.sinks is not None:
            sinks = extras.sinks.double()[:, None, None].expand(-1, end - first, 1)
            scores = torch.cat([scores, sinks], 2)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :end], v)


def extras_of(window, heads):
    return AttentionExtras(window, 3.0, torch.linspace(-3, 5, heads))


@pytest.mark.parametrize(("types", "shape", "window", "new"), thinned(DTYPES, SHAPES, WINDOWS, NEW))
@pytest.mark.usefixtures("target")
def test_all_three_are_float64s(types, shape, window, new):
    """The last queries of each sequence: decodes, or chunks. Without one of the three, the result is another."""
    (backend, dtype, cache_dtype), extras = types, extras_of(window, shape[0])
    layer = Layer(backend, dtype, cache_dtype, shape, extras, LENS, lambda length: max(0, length - new))
    parts = [(seq, max(0, length - new), length) for seq, length in enumerate(LENS)]
    got = torch.cat(layer.attend(parts))
    want = torch.cat([layer.exact(*part, extras) for part in parts])
    assert relative_error(got, want) < TOLERANCE[dtype]
    for name in ("sliding_window", "logits_soft_cap", "sinks"):
        other = torch.cat([layer.exact(*part, replace(extras, **{name: None})) for part in parts])
        assert relative_error(got, other) > 0.01


@pytest.mark.parametrize("cap", [0.5, 30.0, 1e6])
@pytest.mark.usefixtures("target")
def test_a_soft_cap_is_right_near_zero_and_far_out(cap):
    """One key with a score of x beside a sink with 0: its weight is a sigmoid. A cap of 1e6 changes no score."""
    x = torch.linspace(-80, 80, 1001)
    for new in (1, 2):
        layer = Layer(CPUBackend, torch.float32, torch.float32, (1, 1, 16), AttentionExtras(
            sliding_window=1, logits_soft_cap=cap, sinks=torch.zeros(1)), [new] * len(x), lambda _: 0)  # fmt: skip
        for seq, score in enumerate(x):
            layer.q[seq].zero_()[:, 0, 0] = score
        layer.cache[:, layer.tables[:, 0].long()] = 1 / layer.scale
        got = torch.cat(layer.attend([(seq, 0, new) for seq in range(len(x))])).view(-1, new, 16)[:, -1, 0]
        want = (cap * torch.tanh(x.double() / cap)).sigmoid() / layer.scale
        torch.testing.assert_close(got.double(), want, rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("window", [6, 64, 100])
@pytest.mark.parametrize(("dtype", "cache_dtype"), CPUBackend.dtypes, ids=str)
@pytest.mark.usefixtures("target")
def test_a_query_has_the_same_bits_however_its_prompt_is_cut(dtype, cache_dtype, window):
    layer = Layer(CPUInvariantBackend, dtype, cache_dtype, (6, 2, 32), extras_of(window, 6), [150, 290], lambda _: 0)
    whole, other = layer.attend([(0, 0, 150), (1, 0, 290)])
    for cuts in ([0, 1, 150], [0, 63, 64, 65, 150], [0, 30, 60, 90, 120, 149, 150]):
        for first, end in pairwise(cuts):
            alone, beside = layer.attend([(0, first, end), (1, 140, 290)])
            assert torch.equal(alone, whole[first:end])
            assert torch.equal(beside, other[140:])


def test_on_cuda_windows_and_batch_invariance_go_together(monkeypatch):
    monkeypatch.setattr(TritonInvariantBackend, "unavailable_reason", lambda device: None)
    spec = decoder_spec(tiny_hf_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1))
    config = ModelConfig("x", batch_invariant=True)
    assert select_invariant_backend(config, spec, torch.float32, torch.device("cuda")) is TritonInvariantBackend


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.usefixtures("target")
def test_layers_in_one_call_have_the_bits_of_layers_one_by_one(first, tmp_path):
    """Where all layers have one window. Where some have none, their block tables may be others: one by one it is."""
    over = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": first}
    folder = make_hf_folder(tmp_path, "qwen2", **over)
    prompts, params = [list(range(7, 60)), [3, 4]], SamplingParams(temperature=0, max_tokens=20, logprobs=1)
    found = []
    for eager in (False, True):
        llm = LLM(str(folder), dtype="float32", enforce_eager=eager, skip_tokenizer_init=True, max_model_len=80)
        found.append([out.outputs[0].logprobs for out in llm.generate(prompts, params, use_tqdm=False)])
        prepared = getattr(llm.engine.runner.model.model.ops, "prepared", None)
        assert (prepared is None) == (eager or first == 1)
    assert found[0] == found[1]
