"""The KV cache in 8 bits: its bytes, the attention that reads them, and an engine in which blocks move as ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.attention.backends.fp8 import FP8, PagedFp8Backend, to_bytes
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from tests.fake_cuda import FakeCuda
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import serve, waits_of_launches
from tests.m6.support import SCHEDULES

PROMPTS = [[i + 3] * (1 + 5 * (i % 3)) + [9, i] * 3 for i in range(4)]
SETTINGS: dict[str, Any] = {
    "num_kv_blocks": 60, "block_size": 4, "max_num_seqs": 4, "max_model_len": 60, "swap_space": 0.001,
    "kv_cache_dtype": "fp8",
}  # fmt: skip


def make_engine(oracle: Oracle, device: str = "cpu", **settings: Any) -> LLMEngine:
    settings = {"dtype": "float32", **SETTINGS, **settings}
    return LLM(str(oracle.folder), skip_tokenizer_init=True, device=device, **settings).engine


def tokens(engine: LLMEngine, params: SamplingParams) -> list[list[list[int]]]:
    told = serve(engine, [(prompt, params) for prompt in PROMPTS])
    assert_idle(engine)
    return [[output["token_ids"] for output in one["outputs"]] for one in told]


def batch(block_size: int = 4) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
    """q, a cache [2, 8, 4, 2, 16] of bytes in which any number may lie, and two decodes before a prefill of 3 of 6."""
    generator = torch.Generator().manual_seed(0)
    cache = to_bytes(torch.randn(2, 8, block_size, 2, 16, generator=generator) * 3)
    cache[:, 0] = 0x7F  # NaN, in the null block
    q = torch.randn(5, 4, 16, generator=generator)
    tables = torch.tensor([[3, 0], [5, 1], [7, 2]], dtype=torch.int32)
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, 1, 2, 5], dtype=torch.int32),
        seq_lens=torch.tensor([3, 7, 6], dtype=torch.int32),
        slot_mapping=torch.zeros(5, dtype=torch.int64),
        block_tables=tables,
        max_query_len=3,
        max_seq_len=7,
        num_decodes=2,
    )
    return q, cache, metadata


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
def test_the_kernel_makes_the_bytes_that_torch_makes() -> None:
    """Every number of e4m3, the middle between each two, what lies beside the middle, and what is out of range."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernel")
    from folovllm.attention.kernels.store_kv_fp8 import store_kv_fp8

    exact = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    middles = (exact[1:] + exact[:-1]) / 2
    special = torch.tensor([448.1, 1e9, torch.inf, torch.nan, 1e-30, 2**-10, 2**-6 - 2**-20, 0.0])
    numbers = torch.cat([exact, middles, middles.nextafter(torch.tensor(0.0)), middles * (1 + 1e-6), special])
    numbers = torch.cat([numbers, -numbers])
    x = torch.nn.functional.pad(numbers, (0, -len(numbers) % 64)).view(-1, 2, 32)
    cache = torch.zeros(2, 1, len(x), 2, 32, dtype=torch.uint8)
    store_kv_fp8(x, -x, cache[0], cache[1], torch.arange(len(x)))
    assert torch.equal(cache[0, 0], to_bytes(x))
    assert torch.equal(cache[1, 0], to_bytes(-x))


def test_attention_is_that_over_the_numbers_that_the_bytes_mean() -> None:
    q, cache, metadata = batch()
    got = PagedFp8Backend(4, 2, 16, 0.25).forward(q, cache, metadata)
    expected = PagedTorchBackend(4, 2, 16, 0.25).forward(q, cache.view(FP8).float(), metadata)
    assert torch.equal(got, expected)
    assert got.isfinite().all()


def test_the_kernels_read_the_same_numbers() -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernels")
    from folovllm.attention.backends.fp8 import TritonFp8Backend

    q, cache, metadata = batch()
    cache[:, 0] = 0  # the interpreter knows no NaN of 8 bits
    got = TritonFp8Backend(4, 2, 16, 0.25).forward(q, cache, metadata)
    torch.testing.assert_close(got, PagedFp8Backend(4, 2, 16, 0.25).forward(q, cache, metadata))


def test_what_is_written_is_read_and_rounded(oracle: Oracle) -> None:
    """A cache that lost its numbers would say something else; one that kept them all would say just the same."""
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    told = []
    for kind in ("auto", "fp8"):
        outputs = serve(make_engine(oracle, kv_cache_dtype=kind), [(prompt, asked) for prompt in PROMPTS])
        rows = [row for output in outputs for row in output["prompt_logprobs"][1:]]
        told.append(torch.tensor([next(iter(row.values())).expected for row in rows]))
    difference = (told[0] - told[1]).abs()
    assert 0 < difference.mean() < told[0].std() / 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_block_takes_a_byte_for_each_number(oracle: Oracle, dtype: str) -> None:
    plain, fp8 = (make_engine(oracle, dtype=dtype, kv_cache_dtype=kind) for kind in ("auto", "fp8_e4m3"))
    times = 2 if dtype == "bfloat16" else 4
    assert plain.core.cache_size.block_bytes == times * fp8.core.cache_size.block_bytes
    assert plain.runner.kv_cache.num_bytes == times * fp8.runner.kv_cache.num_bytes


@pytest.mark.parametrize("name", SCHEDULES)
def test_blocks_move_as_ever(oracle: Oracle, name: str) -> None:
    """Swapped, copied on write, found again by their hashes: the same tokens."""
    params = SamplingParams(temperature=0.8, seed=3, n=2, max_tokens=10)
    roomy = make_engine(oracle)
    expected = tokens(roomy, params)
    engine = make_engine(oracle, **SCHEDULES[name])
    assert tokens(engine, params) == expected
    if name in ("swap", "recompute"):
        assert engine.stats().preemptions > 0
    assert tokens(roomy, params) == expected
    assert roomy.stats().prefix_cache_hits > 0


@pytest.mark.exhaustive
def test_on_a_gpu_with_graphs(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    params = SamplingParams(temperature=0, max_tokens=5)
    settings = {"num_kv_blocks": 16, "preemption_mode": "swap"}
    engine = make_engine(small_oracle, "cuda", **settings)
    assert engine.runner.kv_cache.backend.name == "triton_fp8"
    fake_cuda.reset_counts()
    with waits_of_launches(engine, fake_cuda) as waits:
        said = tokens(engine, params)
    assert waits == []
    assert fake_cuda.compiled == []
    assert fake_cuda.launches["graph"] > 2
    assert said == tokens(make_engine(small_oracle), params)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"attention_backend": "cpu"}, "attention_backend 'cpu' cannot read kv_cache_dtype 'fp8'"),
        ({"attention_backend": "dense"}, "attention_backend 'dense' cannot read kv_cache_dtype 'fp8'"),
        ({"attention_backend": "nonsense"}, "attention_backend must be one of"),
        ({"batch_invariant": True}, "kv_cache_dtype 'fp8' cannot be combined with batch_invariant=True"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype must be one of 'auto', 'fp8', 'fp8_e4m3'.*, got 'fp8_e5m2'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(oracle: Oracle, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}"):
        make_engine(oracle, **settings)


def test_a_gpu_that_converts_no_e4m3_is_refused(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    fake_cuda.capability = (8, 0)
    with pytest.raises(ValueError, match=r"^kv_cache_dtype 'fp8' cannot be read on cuda.* capability 8\.9 or above"):
        make_engine(small_oracle, "cuda")
