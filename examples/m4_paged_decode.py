"""The decode kernel on a cache whose blocks lie in disorder, split over several programs, against float64.

Without a GPU it runs in Triton's interpreter: the same code, one program after the other, on the CPU.

Run it: python examples/m4_paged_decode.py
"""

from __future__ import annotations

import os

import _tree  # noqa: F401 - folovllm is this tree's
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # to be said before a module with kernels is imported

try:
    from folovllm.attention.kernels.paged_decode import paged_decode
except ImportError as error:
    raise SystemExit(f"the kernel needs Triton: {error}") from None

NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 4, 2, 32, 16
SEQ_LENS = [3, 150, 400]

generator = torch.Generator().manual_seed(0)
num_blocks = [-(-seq_len // BLOCK_SIZE) for seq_len in SEQ_LENS]
free = (1 + torch.randperm(sum(num_blocks), generator=generator)).tolist()  # block 0 is nobody's
tables = torch.zeros(len(SEQ_LENS), max(num_blocks), dtype=torch.int32)
for row, count in enumerate(num_blocks):
    blocks = [free.pop() for _ in range(count)]
    tables[row, :count] = torch.tensor(blocks)
    more = " …" if count > 8 else ""
    print(f"sequence {row}: {SEQ_LENS[row]:3} tokens in blocks {' '.join(map(str, blocks[:8]))}{more}")

cache = torch.randn(2, 1 + sum(num_blocks), BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE, generator=generator)
q = torch.randn(len(SEQ_LENS), NUM_HEADS, HEAD_SIZE, generator=generator)
scale = HEAD_SIZE**-0.5


def reference(row: int) -> torch.Tensor:
    """[num_heads, head_size]: the blocks put in order, and attention written out."""
    k, v = (part[tables[row]].flatten(0, 1)[: SEQ_LENS[row]].double() for part in cache)  # [seq_len, kv heads, size]
    k, v = (part.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=1) for part in (k, v))
    weights = (torch.einsum("hd,nhd->hn", q[row].double(), k) * scale).softmax(-1)
    return torch.einsum("hn,nhd->hd", weights, v)


expected = torch.stack([reference(row) for row in range(len(SEQ_LENS))])
lens = torch.tensor(SEQ_LENS, dtype=torch.int32)
print(f"\non {DEVICE}{', interpreted' if DEVICE == 'cpu' else ''}; largest difference to float64:")
for splits in (1, 2, 4, 8):
    tensors = [tensor.to(DEVICE) for tensor in (q, cache[0], cache[1], tables, lens)]
    out = paged_decode(*tensors, scale, num_splits=splits).cpu()
    programs = NUM_KV_HEADS * len(SEQ_LENS) * splits
    print(f"  {splits} splits, {programs:2} programs: {(out.double() - expected).abs().max():.1e}")
