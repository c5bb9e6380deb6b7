"""Every attention backend on a CUDA device against the table in float64, at a model's sizes too, and in CUDA graphs."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backend import BACKENDS, AttentionBackend, get_backend_class, select_backend
from folovllm.attention.metadata import AttentionMetadata
from tests.m4.attention_reference import BATCHES, SHAPES, Case, Shape, make_case

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device

CUDA = torch.device("cuda")
LARGE = [
    Shape(16, 8, 128, 16, torch.bfloat16),  # Qwen3-0.6B
    Shape(32, 8, 128, 256, torch.float16),
    Shape(28, 4, 128, 64, torch.bfloat16),  # Qwen2.5-7B: groups of 7
    Shape(64, 8, 64, 32, torch.bfloat16),
    Shape(16, 8, 128, 16, torch.float32),
]
LARGE_BATCHES = {
    "256 ragged decodes": [(1, 37 * i % 2999) for i in range(256)],
    "one long decode": [(1, 20_000)],
    "prefill": [(1500, 0), (1, 0), (700, 0), (63, 0)],
    "decodes, then chunks": [*((1, 91 * i % 1999) for i in range(64)), (512, 1000), (3, 2000), (200, 0)],
}


def usable(name: str) -> type[AttentionBackend]:
    """The backend, or a skip that says why it cannot run."""
    backend = get_backend_class(name)
    if (reason := backend.unavailable_reason(CUDA)) is not None:
        pytest.skip(f"{name}: {reason}")
    return backend


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", BACKENDS)
def test_the_table(name: str, batch: str, shape: Shape) -> None:
    make_case(usable(name), BATCHES[batch](shape.block_size), shape, device=CUDA).check()


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("batch", LARGE_BATCHES)
@pytest.mark.parametrize("name", sorted(BACKENDS.keys() - {"dense", "paged_torch", "turing"}))  # one by one
def test_a_models_sizes(name: str, batch: str, shape: Shape) -> None:
    make_case(usable(name), LARGE_BATCHES[batch], shape, device=CUDA).check()


@pytest.mark.parametrize("name", BACKENDS)
def test_queries_keep_their_dtype_over_a_cache_in_another(name: str) -> None:
    shape = LARGE[1]
    make_case(usable(name), [(1, 33), (5, 0), (7, 12)], shape, device=CUDA, query_dtype=torch.float32).check()


def test_triton_is_picked() -> None:
    assert select_backend(None, CUDA).name == "triton"


# --- CUDA graphs


class Recorded:
    """write and forward of a decode step in one CUDA graph; what they read lies in tensors that stay where they are."""

    def __init__(self, case: Case, num_rows: int, max_blocks: int, cache: torch.Tensor) -> None:
        self.backend, self.cache = case.layer.backend, cache
        self.q, self.k, self.v = (torch.zeros(num_rows, *x.shape[1:], dtype=x.dtype, device=CUDA)
                                  for x in (case.q, case.k, case.v))  # fmt: skip
        self.metadata = AttentionMetadata(
            query_start_loc=torch.arange(num_rows + 1, dtype=torch.int32, device=CUDA),
            seq_lens=torch.ones(num_rows, dtype=torch.int32, device=CUDA),
            slot_mapping=torch.zeros(num_rows, dtype=torch.int64, device=CUDA),
            block_tables=torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=CUDA),
            max_query_len=1,
            max_seq_len=max_blocks * cache.shape[2],
            num_decodes=num_rows,
        )
        self._step()  # compiles
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self._step()

    def _step(self) -> torch.Tensor:
        assert self.backend is not None
        self.backend.write(self.k, self.v, self.cache, self.metadata.slot_mapping)
        return self.backend.forward(self.q, self.cache, self.metadata)

    def replay(self, case: Case) -> torch.Tensor:
        """The graph over another batch, of as many rows or fewer: those behind it are padding."""
        assert case.layer.kv_cache is not None
        num_seqs, num_blocks = len(case.q), case.layer.kv_cache.shape[1]
        self.cache[:, :num_blocks] = case.layer.kv_cache
        for kept, new in ((self.q, case.q), (self.k, case.k), (self.v, case.v),
                          (self.metadata.slot_mapping, case.metadata.slot_mapping)):  # fmt: skip
            kept.zero_()
            kept[:num_seqs] = new
        self.metadata.seq_lens.fill_(1)
        self.metadata.seq_lens[:num_seqs] = case.metadata.seq_lens
        self.metadata.block_tables.zero_()
        self.metadata.block_tables[:num_seqs, : case.metadata.block_tables.shape[1]] = case.metadata.block_tables
        self.out.fill_(torch.nan)
        self.graph.replay()
        return self.out[:num_seqs]


@pytest.mark.parametrize("num_rows", [1, 8, 64, 300])
@pytest.mark.parametrize("name", [name for name in BACKENDS if get_backend_class(name).supports_cuda_graphs])
def test_a_recorded_decode_is_right_for_other_lengths_and_for_fewer_sequences(name: str, num_rows: int) -> None:
    backend, shape = get_backend_class(name), LARGE[0]
    cases = [
        make_case(backend, [(1, longest * i % 1997) for i in range(1, count + 1)], shape, device=CUDA, seed=longest)
        for longest, count in ((3, num_rows), (1234, num_rows), (41, max(num_rows - 3, 1)))
    ]
    num_blocks = max(case.layer.kv_cache.shape[1] for case in cases)
    cache = torch.zeros(2, num_blocks, *cases[0].layer.kv_cache.shape[2:], dtype=shape.dtype, device=CUDA)
    recorded = Recorded(cases[0], num_rows, 1 + 2000 // shape.block_size, cache)
    for case in cases:
        torch.testing.assert_close(recorded.replay(case).double(), case.want, atol=3e-2, rtol=0)


# --- sizes


@pytest.mark.parametrize("spans", [[(1, 40), (1, 7)], [(20, 13)]], ids=["decode", "prefill"])
def test_blocks_behind_2_to_the_31_numbers(spans: list[tuple[int, int]]) -> None:
    shape = LARGE[0]
    per_block = shape.block_size * shape.num_kv_heads * shape.head_size
    first = 2**31 // per_block + 1
    case = make_case(usable("triton", shape), spans, shape, device=CUDA)
    assert case.layer.kv_cache is not None
    small, extra = case.layer.kv_cache, case.layer.kv_cache.shape[1]
    if torch.cuda.mem_get_info()[0] < 3 * (first + extra) * per_block * 2:
        pytest.skip("not enough GPU memory for a cache of 2^31 numbers")
    large = torch.empty(2, first + extra, *small.shape[2:], dtype=small.dtype, device=CUDA)
    large[:, first:] = small
    case.layer.kv_cache = large
    case.metadata.block_tables += first
    case.metadata.slot_mapping += first * shape.block_size
    case.check()


def test_the_same_step_gives_the_same_bits_every_time() -> None:
    """A race would show: the same step a hundred times, and not one bit differs."""
    case = make_case(get_backend_class("triton"), LARGE_BATCHES["decodes, then chunks"], LARGE[0], device=CUDA)
    first = case.run()
    assert all(torch.equal(case.run(), first) for _ in range(100))
