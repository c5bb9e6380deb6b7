"""Computes with kernels as they are compiled for a GPU, and prints how far each result is from the right one.

Run as a program, outside of pytest: there, without a GPU, Triton interprets. What a kernel must not read is NaN. Right
is what float64 says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from folovllm.attention.backend import NO_EXTRAS, AttentionExtras, FusedRope
from folovllm.attention.backends.fp8 import FP8, to_bytes
from folovllm.attention.backends.int8 import codes_of, scales_of
from folovllm.attention.kernels import paged_decode as kernels
from folovllm.attention.kernels.paged_decode import paged_decode
from folovllm.attention.kernels.paged_prefill import paged_prefill
from folovllm.attention.kernels.store_kv_fp8 import store_kv_fp8
from folovllm.attention.kernels.store_kv_int8 import store_kv_int8
from folovllm.layers import moe
from folovllm.layers.kernels import experts as of_experts
from folovllm.layers.kernels.add_rms_norm import rms_norm
from folovllm.layers.kernels.experts import grouped_mlps
from folovllm.layers.kernels.few_rows import few_rows
from folovllm.layers.kernels.matmul import linear
from folovllm.layers.kernels.norm_rotary import norm_rotary
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.moe import group, route
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.codes import Codes, round_to_e4m3, round_to_nearest
from folovllm.layers.quantization.kernels.linear_codes import linear_codes, pack_codes
from folovllm.layers.quantization.kernels.round_rows import round_rows
from folovllm.sample.filters import Filters, keep_prefix
from folovllm.sample.kernels import sampler
from folovllm.sample.kernels.sampler import sample
from folovllm.sampling_params import SamplingParams
from tests.m11.cuda.ptx.launch import Launcher

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Result = tuple[str, Tensor, Tensor]
"""What was computed; what came of it; what is right."""


class Paged:
    """Sequences of these lengths in a cache that is NaN elsewhere, the last queries of which are asked."""

    def __init__(
        self, dtype: torch.dtype, head: int, group: int, queries: list[int], lens: list[int], kv_heads: int = 1
    ):
        self.block_size = 16
        blocks = max(lens) // self.block_size + 2
        self.tables = torch.randperm(blocks * len(lens)).view(len(lens), -1).int() + 1
        self.lens, self.scale, self.counts = torch.tensor(lens).int(), head**-0.5, queries
        self.starts = torch.tensor([0, *torch.tensor(queries).cumsum(0)]).int()
        self.q = torch.randn(sum(queries), kv_heads * (group + 2), head).to(dtype)[:, : kv_heads * group]
        position = torch.cat([torch.arange(length) for length in lens])
        seq = torch.arange(len(lens)).repeat_interleave(self.lens)
        self.slots = self.tables[seq, position // self.block_size].long() * self.block_size + position % self.block_size
        self.shape = 2, blocks * len(lens) + 1, self.block_size, kv_heads, head
        self.kv = torch.randn(2, len(position), kv_heads, head).to(dtype)

    def cache(self) -> Tensor:
        cache = torch.full(self.shape, float("nan"), dtype=self.kv.dtype)
        cache.flatten(1, 2)[:, self.slots] = self.kv
        return cache

    def expected(self, kv: Tensor | None = None, extras: AttentionExtras = NO_EXTRAS) -> Tensor:
        kv, out, first = (self.kv if kv is None else kv).double(), [], 0
        cap, window = extras.logits_soft_cap, extras.sliding_window
        kv = kv.repeat_interleave(self.q.shape[1] // kv.shape[2], 2)
        for queries, count, length in zip(
            self.q.double().split(self.counts), self.counts, self.lens.tolist(), strict=True
        ):
            keys, values = kv[:, first : first + length]
            sees = torch.arange(length)[None] <= (length - count + torch.arange(count))[:, None]
            if window is not None:
                sees &= torch.arange(length)[None] > (length - count + torch.arange(count))[:, None] - window
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * self.scale
            scores = (scores if cap is None else cap * (scores / cap).tanh()).masked_fill(~sees, -torch.inf)
            if extras.sinks is not None:  # a key more, without a value
                sinks = extras.sinks.double()[:, None, None].expand(-1, count, 1)
                scores, values = torch.cat([scores, sinks], 2), F.pad(values, (0, 0, 0, 0, 0, 1))
            out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
            first += length
        return torch.cat(out)

    def decode(self, keys: Tensor, values: Tensor, splits: int, **extras: Any) -> Tensor:
        counters = torch.zeros(len(self.lens) * keys.shape[2], dtype=torch.int32)
        order = self.lens.argsort(descending=True).int() if max(self.counts) == 1 else None
        out = paged_decode(
            self.q, keys, values, self.tables, self.lens, self.scale, query_start_loc=self.starts, order=order,
            num_splits=splits, counters=counters, **extras,
        )  # fmt: skip
        assert not counters.any()
        return out

    def prefill(self, keys: Tensor, values: Tensor, **how: Any) -> Tensor:
        longest = max(self.counts)
        return paged_prefill(self.q, keys, values, self.tables, self.starts, self.lens, longest, self.scale, **how)


def decodes() -> Iterator[Result]:
    for dtype, head, heads, queries, lens, splits in (
        (BF16, 128, 2, [1, 1, 1], [100, 16, 257], 8), (BF16, 128, 7, [2, 1], [300, 33], 8),
        (BF16, 128, 1, [16, 5], [150, 40], 8), (BF16, 128, 2, [1, 1], [1500, 1000], 64),
        (FP16, 80, 4, [1, 3], [70, 90], 1), (FP16, 96, 16, [1, 1], [70, 90], 3), (BF16, 256, 2, [1, 1], [130, 64], 4),
        (FP32, 64, 2, [1, 1], [70, 22], 4),
    ):  # fmt: skip
        paged = Paged(dtype, head, heads, queries, lens)
        yield (
            f"decode {dtype} {head} {heads} {queries} {splits}",
            paged.decode(*paged.cache(), splits),
            paged.expected(),
        )


def prefills() -> Iterator[Result]:
    for dtype, head, heads, queries, lens in (
        (BF16, 128, 2, [7, 0, 1, 30], [100, 9, 5, 30]), (BF16, 64, 7, [20, 3], [100, 3]), (BF16, 128, 4, [40], [40]),
        (FP16, 80, 2, [70, 1], [70, 33]), (BF16, 256, 2, [40], [70]),
    ):  # fmt: skip
        paged = Paged(dtype, head, heads, queries, lens)
        yield f"prefill {dtype} {head} {heads} {queries}", paged.prefill(*paged.cache()), paged.expected()
    paged = Paged(BF16, 128, 2, [40, 1, 1], [70, 22, 90])
    yield "prefill, invariant", paged.prefill(*paged.cache(), batch_invariant=True), paged.expected()


def extras() -> Iterator[Result]:
    """Windows, in front of which blocks are gone; a soft-cap; sinks."""
    for window, cap, has_sinks in ((40, None, False), (None, 2.0, False), (None, None, True), (70, None, True)):
        more = AttentionExtras(window, cap, torch.randn(4).to(BF16) if has_sinks else None)
        for queries, splits in (([1, 1, 1], 1), ([1, 1, 1], 5), ([4, 3, 2], 5)):
            paged = Paged(BF16, 64, 4, queries, [150, 33, 201])
            if window is not None:
                for table, length, count in zip(paged.tables, paged.lens, queries, strict=True):
                    table[: max(0, int(length) - count - window + 1) // paged.block_size] = 0  # NaN
            name = f"decode with {window} {cap} {has_sinks} {queries} {splits}"
            yield name, paged.decode(*paged.cache(), splits, extras=more), paged.expected(extras=more)
        for invariant in (False, True):
            paged = Paged(BF16, 64, 4, [50, 1, 30], [150, 33, 201])
            if window is not None:
                for table, length, count in zip(paged.tables, paged.lens, paged.counts, strict=True):
                    table[: max(0, int(length) - count - window + 1) // paged.block_size] = 0
            name = f"prefill with {window} {cap} {has_sinks} {invariant}"
            got = paged.prefill(*paged.cache(), extras=more, batch_invariant=invariant)
            yield name, got, paged.expected(extras=more)


def fused() -> Iterator[Result]:
    """With norm and rotation of q and k, and k and v on their way into the cache, where their slots are NaN before."""
    plain, all_of_them = NO_EXTRAS, AttentionExtras(70, 2.0, torch.randn(4).to(BF16))
    for head, heads, lens, splits, has_norm, layer in (
        (128, 2, [64, 17, 200], 1, True, plain), (80, 7, [1, 129], 4, False, plain),
        (64, 2, [1, 150, 193], 5, True, all_of_them), (64, 2, [70], 1, False, all_of_them),
    ):  # fmt: skip
        paged = Paged(BF16, head, heads, [1] * len(lens), lens, kv_heads=2)
        ends = paged.lens.cumsum(0) - 1
        angles, norm = torch.randn(len(lens), 2, head // 2), QKNorm(2 * heads, 2, head, 1e-6)
        norm.weight = torch.nn.Parameter(torch.randn(2, head).to(BF16), requires_grad=False)
        cos, sin = angles.unbind(1)
        rotary = torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)
        qkv = torch.randn(len(lens), 2 * heads + 4, head).to(BF16)
        turned = LayerOps().norm_rotary(qkv.float(), norm if has_norm else None, rotary, 2 * heads, 2)
        cache = paged.cache()
        cache.flatten(1, 2)[:, paged.slots[ends]] = float("nan")
        more = FusedRope(norm.weight if has_norm else None, 1e-6, *rotary, paged.slots[ends])
        paged.q = qkv[:, : 2 * heads]
        got = paged.decode(*cache, splits, fused=more, extras=layer)
        paged.q, *stored = (each.to(BF16) for each in turned)
        paged.kv[:, ends] = torch.stack(stored)
        yield f"fused decode {head} {splits}", got, paged.expected(extras=layer)
        yield f"its K and V {head} {splits}", cache.flatten(1, 2)[:, paged.slots], paged.kv


def caches_of_8_bits() -> Iterator[Result]:
    paged, many = (Paged(BF16, 64, 2, queries, [90, 33], kv_heads=2) for queries in ([1, 1], [40, 20]))
    many.tables, many.slots, many.kv = paged.tables, paged.slots, paged.kv
    cache = torch.full(paged.shape, 0x7F, dtype=torch.uint8)  # NaN
    store_kv_fp8(*paged.kv, *cache, paged.slots)
    yield "store_kv_fp8", cache.flatten(1, 2)[:, paged.slots], to_bytes(paged.kv)
    numbers = to_bytes(paged.kv).view(FP8)
    for splits in (1, 3):
        yield f"decode of fp8, {splits}", paged.decode(*cache.view(FP8), splits), paged.expected(numbers)
    yield "prefill of fp8", many.prefill(*cache.view(FP8)), many.expected(numbers)
    whole = torch.zeros(*paged.shape[:-1], paged.shape[-1] + 4, dtype=torch.int8)
    codes, scales = codes_of(whole), scales_of(whole)
    scales.fill_(float("nan"))
    store_kv_int8(*paged.kv, *codes, paged.slots)
    numbers = (codes.float() * scales[..., None]).flatten(1, 2)[:, paged.slots]
    for splits in (1, 3):
        yield f"decode of int8, {splits}", paged.decode(*codes, splits), paged.expected(numbers)
    yield "prefill of int8", many.prefill(*codes), many.expected(numbers)


def few() -> Iterator[Result]:
    for rows, outs, ins in ((5, 48, 896), (13, 48, 520), (32, 16, 512), (50, 16, 264)):
        x, weight, added = (torch.randn(size).to(BF16) for size in ((rows, ins), (2 * outs, ins), (rows, outs)))
        norm = RMSNorm(ins, 1e-6).to(BF16)
        norm.weight = torch.nn.Parameter(torch.randn(ins).to(BF16), requires_grad=False)
        scale = torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
        products = (x.float() * norm.weight.float()).to(BF16).double() @ weight.double().T * scale
        yield f"norm and product of {rows}", few_rows(x, weight, norm=norm), products
        gate, up = products.chunk(2, 1)
        yield f"gate and up of {rows}", few_rows(x, weight, norm=norm, gated=True), F.silu(gate) * up
        plain = F.linear(x.double(), weight[:outs].double(), added[0].double())
        yield f"sum of {rows}", few_rows(x, weight[:outs], added[0], add_to=added.clone()), plain + added.double()
    x, weight = torch.randn(64, 200).to(BF16), torch.randn(2 * 3136, 200).to(BF16)  # in the matrix units' own tiles
    gate, up = (x.double() @ weight.double().T).chunk(2, 1)
    yield "gate and up of 64", few_rows(x, weight, gated=True), F.silu(gate) * up


def codes() -> Iterator[Result]:
    for bits, symmetric, size, ins, outs, dtype, rows in (
        (4, False, 128, 512, 96, BF16, 3), (4, True, 32, 320, 64, BF16, 20), (4, True, 128, 256, 64, FP16, 16),
        (4, True, 16, 64, 64, BF16, 9), (8, True, -1, 300, 64, BF16, 5), (4, True, 128, 256, 144, BF16, 300),
        (4, True, 128, 1024, 64, BF16, 2),  # split
    ):  # fmt: skip
        made = round_to_nearest(torch.randn(outs, ins), bits=bits, group_size=size, symmetric=symmetric)
        yield from _of_codes(f"codes {bits} {size} {dtype} of {rows}", made, bits, torch.randn(rows, ins).to(dtype))
    for dtype, rows in ((BF16, 3), (FP16, 20)):
        numbers, scale = round_to_e4m3(torch.randn(96, 3, 128) * 0.02)
        made = Codes(numbers.flatten(1), scale.flatten(1), None)
        yield from _of_codes(f"e4m3 {dtype}", made, 8, torch.randn(rows, 384).to(dtype))


def _of_codes(name: str, made: Codes, bits: int, x: Tensor) -> Iterator[Result]:
    right = x.double() @ made.dequantize().double().T
    for invariant in (False, True):
        yield f"{name} {invariant}", linear_codes(x, pack_codes(made, bits), invariant=invariant), right
    (gate, up), stream, norm = right.chunk(2, 1), torch.randn(right.shape).to(x.dtype), RMSNorm(right.shape[1], 1e-6)
    norm.weight = torch.nn.Parameter(torch.randn(right.shape[1]).to(x.dtype), requires_grad=False)
    normed = F.rms_norm(stream.double() + right, right.shape[1:], norm.weight.double(), 1e-6)
    yield f"{name} gated", linear_codes(x, pack_codes(made, bits), gated=True), F.silu(gate) * up
    yield f"{name} normed", linear_codes(x, pack_codes(made, bits), into=(norm, stream)), normed


def small_ones() -> Iterator[Result]:
    x, residual, weight = (torch.randn(size).to(BF16) for size in ((3, 1000), (3, 1000), (1000,)))
    total = (x + residual).double()
    normed = total * torch.rsqrt(total.square().mean(1, keepdim=True) + 1e-6) * weight.double()
    yield "rms_norm", rms_norm(x, residual.clone(), weight, 1e-6)[0], normed
    gate, up = x.double().chunk(2, 1)
    yield "silu_mul", silu_mul(x), F.silu(gate) * up
    numbers, scale = round_rows(x, FP8)
    right, right_scale = round_to_e4m3(x)
    yield "round_rows", numbers.float() * scale, right.float() * right_scale
    for rows, dtype in ((5, BF16), (70, BF16), (3, FP32)):
        x, weight = torch.randn(rows, 200).to(dtype), torch.randn(90, 200).to(dtype)
        yield f"linear {rows}", linear(x, weight), x.double() @ weight.double().T
    for head, heads, kv_heads in ((128, 16, 8), (80, 7, 1)):
        qkv, angles = torch.randn(3, heads + 2 * kv_heads, head).to(BF16), torch.randn(3, 2, head // 2)
        norm = QKNorm(heads, kv_heads, head, 1e-6)
        norm.weight = torch.nn.Parameter(torch.randn(2, head).to(BF16), requires_grad=False)
        (cos, sin), slots = angles.unbind(1), torch.tensor([7, 0, 19])
        rotary = torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)
        right = LayerOps().norm_rotary(qkv.float(), norm, rotary, heads, kv_heads)
        cache = torch.zeros(2, 5, 4, kv_heads, head, dtype=BF16)
        q, _, _ = norm_rotary(qkv.clone(), norm, rotary, heads, kv_heads, cache, slots)
        yield f"norm_rotary {head}", q, right[0]
        yield f"K and V {head}", cache.flatten(1, 2)[:, slots], torch.stack(right[1:])


def experts() -> Iterator[Result]:
    for tokens in (5, 40):
        x, gate_up, down = (torch.randn(size).to(BF16) / 8 for size in ((tokens, 64), (6, 96, 64), (6, 64, 48)))
        routing = route(torch.randn(tokens, 6), 2, renormalize=True)
        gate, up = torch.einsum("ehd,td->teh", gate_up.double(), x.double()).chunk(2, 2)
        each = torch.einsum("edh,teh->ted", down.double(), F.silu(gate) * up)
        chosen = each.gather(1, routing.experts[..., None].expand(-1, -1, 64))
        right = (chosen * routing.weights[..., None]).sum(1)
        yield f"experts {tokens}", grouped_mlps(x, gate_up, down, group(routing.experts, 6), routing), right


def routes() -> Iterator[Result]:
    """Of logits with ties, NaN and -inf; and more pairs than are looked at together."""
    logits = torch.randn(5, 60)
    logits[1], logits[2, 7], logits[3, ::2] = torch.randint(3, (60,)).float(), torch.nan, -torch.inf
    for renormalize in (False, True):
        found, right = (of.route(logits, 5, renormalize=renormalize) for of in (of_experts, moe))
        yield f"argmax, {renormalize=}", found.experts, right.experts
        yield f"float32 weights, {renormalize=}", found.weights.nan_to_num(0.5), right.weights.nan_to_num(0.5)
    chosen = torch.rand(600, 7).argsort(1)[:, :2]
    groups, right_groups = (of.group(chosen, 8) for of in (of_experts, moe))
    yield "kept order", torch.cat(groups), torch.cat(right_groups)


def draws() -> Iterator[Result]:
    """What may be drawn, of rows with ties, with few tokens, and with one; and what is, where that is sure."""
    plain, ties = torch.randn(1, 300) * 3, torch.randint(3, (1, 300)).float()
    logits = torch.cat([plain, ties, ties, plain, plain, ties])
    logits[3, 40:] = -torch.inf
    few = SamplingParams(top_k=50, top_p=0.8, min_p=0.02)
    asked = [
        SamplingParams(temperature=0), SamplingParams(top_k=130), SamplingParams(top_p=0.6),
        SamplingParams(top_k=60, top_p=0.9), few, SamplingParams(temperature=0),
    ]  # fmt: skip
    filters = Filters.of(asked, 300, logits.device)
    kept = torch.empty(logits.shape, dtype=torch.int8)
    right = torch.zeros_like(kept)
    for row, params in enumerate(asked):
        if params.temperature:
            found = keep_prefix(logits[row : row + 1], filters.take([row]), 300)
            right[row, logits[row].argsort(descending=True, stable=True)[: int(found.keep)]] = 1  # type: ignore[arg-type]
    flat = Filters(filters.temperature[:, 0], filters.top_k[:, 0], filters.top_p[:, 0], filters.min_p[:, 0])
    tokens = sample(logits, flat, torch.arange(6), torch.arange(6), kept=kept)
    assert right[range(1, 5), tokens[1:5]].all()
    yield "kept", kept[1:5] * logits[1:5].isfinite(), right[1:5]
    yield "argmax", tokens[[0, 5]], logits[[0, 5]].argmax(1)
    sampler.FEW = 1
    yield "drawn of few", tokens, sample(logits, flat, torch.arange(6), torch.arange(6))


if __name__ == "__main__":
    torch.manual_seed(0)
    Launcher(seed=1).install()
    kernels.places_of = lambda device: 1  # so that the order counts
    cases = [decodes, prefills, extras, fused, caches_of_8_bits, few, codes, small_ones, experts, routes, draws]
    if sys.argv[1:] == ["amd"]:  # what a kernel has for AMD in the place of NVIDIA's own; the rest is the same
        triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: GPUTarget("hip", "gfx942", 64)))
        cases = [caches_of_8_bits, codes]
    found = {}
    with torch.inference_mode():
        for some in cases:
            for name, got, right in some():
                found[name] = float((got.double() - right.double()).norm() / right.double().norm())
    json.dump(found, sys.stdout)
