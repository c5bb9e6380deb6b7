"""paged_decode that also turns q and k, and stores k and v: beside torch's operators and the formula in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from folovllm.attention.backend import NO_EXTRAS, AttentionExtras, FusedRope
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import kernels_unavailable_reason
from folovllm.layers.norm import QKNorm
from folovllm.layers.ops import norm_rotary
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.sampling_params import SamplingParams
from tests.fake_cuda import FakeCuda
from tests.helpers import some
from tests.m3.oracle import Oracle
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, Shape, make_case
from tests.m4.cuda_support import PROMPTS, make_engine
from tests.m11.cuda.test_attention_extras import reference

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.kernels.paged_decode import FEW_SPLITS, paged_decode

ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
LENGTHS = (199, 0, 63, 64, 17)  # a new block, a first token, the last of a tile, the first of one


@pytest.mark.parametrize("num_splits", some([2, 1, FEW_SPLITS + 3]))
@pytest.mark.parametrize(
    ("shape", "has_norm", "extras"),
    [
        (Shape(4, 2, 32, 16, torch.float32), True, NO_EXTRAS),
        (Shape(7, 1, 20, 16, torch.float32), False, NO_EXTRAS),  # padded to 32 columns
        (Shape(4, 2, 32, 16, torch.bfloat16), True, NO_EXTRAS),
        (Shape(2, 2, 16, 8, torch.float32), True, AttentionExtras(sliding_window=40)),
    ],
    ids=str,
)
def test_it_is_norm_rotation_store_and_attention(
    shape: Shape, has_norm: bool, extras: AttentionExtras, num_splits: int
) -> None:
    check(shape, LENGTHS, has_norm, extras, num_splits)


def check(
    shape: Shape, lengths: Sequence[int], has_norm: bool, extras: AttentionExtras, num_splits: int | None
) -> None:
    case = make_case(PagedTorchBackend, [(1, length) for length in lengths], shape, device=KERNEL_DEVICE)
    cache, metadata, (heads, kv_heads, size, *_) = case.layer.kv_cache, case.metadata, shape
    assert cache is not None
    norm = QKNorm(heads, kv_heads, size, 1e-6).to(KERNEL_DEVICE, shape.dtype) if has_norm else None
    if norm is not None:
        norm.weight.data.uniform_(0.5, 1.5, generator=torch.Generator(KERNEL_DEVICE).manual_seed(1))
    positions = torch.tensor(lengths, device=KERNEL_DEVICE)
    rotary = RotaryEmbedding(size, max(lengths) + 1, ROPE).to(KERNEL_DEVICE)(positions)
    projected, before = torch.cat((case.q, case.k, case.v), dim=1), cache.clone()
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    out = paged_decode(
        projected[:, :heads], *cache.unbind(0), metadata.block_tables, metadata.seq_lens, case.layer.scale,
        query_start_loc=metadata.query_start_loc, num_splits=num_splits, extras=extras,
        fused=FusedRope(weight, eps, *rotary, metadata.slot_mapping),
    )  # fmt: skip
    norm = None if norm is None else norm.float()  # the kernel, too, computes in float32 and rounds once
    turned = norm_rotary(projected.float(), norm, rotary, heads, kv_heads)
    q, k, v = (each.to(shape.dtype) for each in turned)
    case.layer.backend.write(k, v, before, metadata.slot_mapping)
    tolerance: dict[str, Any] = {"atol": TOLERANCE[shape.dtype], "rtol": 0.0}
    torch.testing.assert_close(cache, before, equal_nan=True, **tolerance)  # and no other place is written
    for place, (length, blocks) in enumerate(zip(lengths, metadata.block_tables, strict=True)):
        keys, values = before[:, blocks.long()].flatten(1, 2)[:, : length + 1]
        want = reference(q[place : place + 1], keys, values, case.layer.scale, extras)
        torch.testing.assert_close(out[place : place + 1].double(), want, **tolerance)


def test_a_place_without_a_sequence_writes_nothing() -> None:
    shape = Shape(2, 1, 16, 8, torch.float32)
    case = make_case(PagedTorchBackend, [(1, 9), (1, 9)], shape, device=KERNEL_DEVICE)
    case.metadata.seq_lens[1] = 0
    cache = case.layer.kv_cache
    assert cache is not None
    before = cache.clone()
    cos = torch.ones(2, 1, 16, device=KERNEL_DEVICE)
    paged_decode(
        torch.cat((case.q, case.k, case.v), dim=1)[:, :2], *cache.unbind(0), case.metadata.block_tables,
        case.metadata.seq_lens, 1.0, fused=FusedRope(None, 0.0, cos, torch.zeros_like(cos), case.metadata.slot_mapping),
    )  # fmt: skip
    case.layer.backend.write(case.k[:1], case.v[:1], before, case.metadata.slot_mapping[:1])
    assert torch.equal(cache.nan_to_num(), before.nan_to_num())


@pytest.mark.exhaustive
@pytest.mark.parametrize("eager", [False, True])
def test_a_decode_of_the_engine_launches_no_other_kernel_for_it(
    small_oracle: Oracle, fake_cuda: FakeCuda, eager: bool
) -> None:
    engine = make_engine(small_oracle, enforce_eager=eager, async_scheduling=False)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, SamplingParams(temperature=0, max_tokens=4))
    said: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        fake_cuda.reset_counts()
        for output in engine.step():
            said[output.request_id] = list(output.outputs[0].token_ids)
        decodes = all(seq.get_output_len() > 1 for request in engine.scheduler.running for seq in request.get_seqs())
        if decodes:
            assert not {"_norm_rotary_kernel", "_paged_prefill"} & fake_cuda.launches.keys()
    assert fake_cuda.compiled == []  # no request waits for a compiler
    assert said == {str(i): small_oracle.greedy(prompt, 4) for i, prompt in enumerate(PROMPTS)}
