"""Attention of a padded step with prompts, in the interpreter where there is no GPU, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from folovllm.attention.backends.triton import kernels_unavailable_reason
from folovllm.utils.upload import longest_first
from folovllm.worker.prompt_shape import PromptShape
from tests.m4.attention_reference import KERNEL_DEVICE, TOLERANCE, Case, Shape, Spans

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.kernels.paged_decode import paged_decode
from folovllm.attention.kernels.paged_prefill import paged_prefill
from tests.m4.test_kernels_attention import close, written

STEPS: dict[str, tuple[Spans, PromptShape]] = {
    "decodes and prompts": ([(1, 33), (1, 0), (5, 0), (7, 12)], PromptShape(16, 6, 4)),
    "prompts alone": ([(9, 3), (6, 0)], PromptShape(16, 3, 3)),
    "decodes alone": ([(1, 20), (1, 3)], PromptShape(4, 2, 2)),
    "one token behind a prompt": ([(1, 9), (3, 2), (1, 30)], PromptShape(8, 4, 4)),
    "no padding": ([(1, 7), (3, 0)], PromptShape(4, 1, 3)),
}
SHAPES = [Shape(4, 2, 32, 4, torch.float32), Shape(3, 1, 64, 16, torch.bfloat16)]


def padded(case: Case, shape: PromptShape) -> torch.Tensor:
    """What the backend computes of the case's queries, in a step of this shape."""
    m, backend, cache = case.metadata, case.layer.backend, case.layer.kv_cache
    assert isinstance(cache, torch.Tensor)
    count, lens, none = len(case.q), m.seq_lens.cpu().numpy(), np.zeros(len(case.q), np.int64)
    slots, ends = m.slot_mapping.cpu().numpy(), m.query_start_loc[1:].cpu().numpy()
    order = longest_first(lens[: m.num_decodes], 0)
    packed = torch.from_numpy(shape.pack([none, none, slots, lens, order], ends, cache.shape[2])).to(KERNEL_DEVICE)
    tables = torch.zeros(shape.num_seqs, max(8, m.block_tables.shape[1]), dtype=torch.int32, device=KERNEL_DEVICE)
    width, rest = m.block_tables.shape[1], len(lens) - m.num_decodes
    tables[: m.num_decodes, :width] = m.block_tables[: m.num_decodes]
    tables[shape.num_decodes :][:rest, :width] = m.block_tables[m.num_decodes :]
    _, _, metadata = shape.unpack(packed, tables[None], 64)
    fused = torch.randn(shape.num_tokens, *case.q.shape[1:], dtype=case.q.dtype, device=KERNEL_DEVICE)
    keys = torch.randn(shape.num_tokens, cache.shape[3], cache.shape[4], dtype=cache.dtype, device=KERNEL_DEVICE)
    backend.write(keys[count:], keys[count:], cache, metadata.slot_mapping[count:])
    fused[:count] = case.q
    return TritonBackend(backend.num_heads, backend.num_kv_heads, backend.head_size, backend.scale).forward(
        fused, cache, metadata
    )


@pytest.mark.parametrize("dims", SHAPES, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_a_padded_step_computes_what_the_step_does(step: str, dims: Shape) -> None:
    """And padding sees nothing that was never written: the rest of the cache is NaN."""
    spans, shape = STEPS[step]
    case = written(spans, dims)
    out = padded(case, shape)
    close(out[: len(case.q)], case.want, dims.dtype)
    assert out.isfinite().all()


@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_decode_that_is_not_there_leaves_its_row_alone(num_splits: int) -> None:
    case = written([(1, 40), (1, 3)])
    keys, values = case.layer.kv_cache.unbind(0)
    tables, lens = case.metadata.block_tables.flip(0), torch.tensor([4, 0, 41], dtype=torch.int32)
    tables = torch.cat([tables[:1], tables[:1], tables[1:]])
    out = torch.full((3, 4, 32), 7.0, device=KERNEL_DEVICE)
    q = torch.cat([case.q[1:], case.q[1:], case.q[:1]])
    paged_decode(q, keys, values, tables, lens.to(KERNEL_DEVICE), case.layer.scale, num_splits=num_splits, out=out)
    close(out[[2, 0]], case.want)
    assert (out[1] == 7).all()


@pytest.mark.parametrize("by_position", [False, True])
def test_every_tile_finds_its_sequence(by_position: bool) -> None:
    """Sequences of each length around a tile's 32 rows (16 queries of two heads), and some without a query."""
    lengths = [15, 0, 16, 17, 0, 0, 1, 33]
    case = written([(length, 5 * place) for place, length in enumerate(lengths) if length])
    m, tables, lens = case.metadata, case.metadata.block_tables, case.metadata.seq_lens
    at = torch.tensor(lengths, device=KERNEL_DEVICE).bool().cumsum(0) - 1  # those without one repeat another's table
    starts = torch.tensor([0, *lengths], device=KERNEL_DEVICE).cumsum(0).int()
    keys, values = case.layer.kv_cache.unbind(0)
    out = paged_prefill(
        case.q, keys, values, tables[at], starts, lens[at], m.max_query_len, case.layer.scale,
        batch_invariant=by_position,
    )  # fmt: skip
    torch.testing.assert_close(out.double(), case.want, atol=TOLERANCE[torch.float32], rtol=0)
