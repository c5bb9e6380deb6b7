"""The KV cache in 8 bits on a GPU: bytes as torch makes them, attention as defined, an engine that says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.attention.backends.fp8 import FP8, PagedFp8Backend, to_bytes
from folovllm.attention.metadata import AttentionMetadata
from tests.gpu.places import Place, on_every_place
from tests.helpers import make_hf_folder

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def new_enough(request: pytest.FixtureRequest) -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU converts no e4m3")


@on_every_place
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stored_bytes_are_torchs(dtype: torch.dtype, place: Place) -> None:
    from folovllm.attention.kernels.store_kv_fp8 import store_kv_fp8

    exact = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    middles = (exact[1:] + exact[:-1]) / 2
    numbers = torch.cat([exact, middles, torch.randn(4096 if place.full else 64) * 30])
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 64))
    x = torch.cat([numbers, -numbers]).to(dtype).view(-1, 2, 32)
    cache = torch.zeros(2, len(x), 1, 2, 32, dtype=torch.uint8, device=place.device)
    store_kv_fp8(x.to(place.device), -x.to(place.device), cache[0], cache[1], torch.arange(len(x), device=place.device))
    assert torch.equal(cache[0, :, 0].cpu(), to_bytes(x))
    assert torch.equal(cache[1, :, 0].cpu(), to_bytes(-x))


@on_every_place
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_attention_reads_what_the_bytes_mean(head_size: int, dtype: torch.dtype, allowed: float, place: Place) -> None:
    """Three decodes of uneven lengths in front of a prompt whose second half is computed. Float32 is multiplied in two
    parts of 10 bits; rounded to one of them, it would be off by 1e-4 and more."""
    from folovllm.attention.backends.fp8 import TritonFp8Backend

    generator = torch.Generator().manual_seed(0)
    lens, new = ([700, 33, 1, 200], [1, 1, 1, 100]) if place.full else ([20, 5, 1, 9], [1, 1, 1, 4])
    heads, kv_heads = (16, 8) if place.full else (2, 1)
    width = -(-max(lens) // 16)
    cache = to_bytes(torch.randn(2, 4 * width, 16, kv_heads, head_size, generator=generator))
    tables = torch.randperm(4 * width, generator=generator).view(4, width).to(torch.int32)
    q = torch.randn(sum(new), heads, head_size, generator=generator).to(dtype)
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)

    def forward(backend: type, q: torch.Tensor, device: str) -> torch.Tensor:
        metadata = AttentionMetadata(
            query_start_loc=starts.to(device),
            seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(sum(new), dtype=torch.int64, device=device),
            block_tables=tables.to(device),
            max_query_len=max(new),
            max_seq_len=max(lens),
            num_decodes=3,
        )
        out = backend(heads, kv_heads, head_size, head_size**-0.5).forward(q.to(device), cache.to(device), metadata)
        return out.float().cpu()

    got = forward(TritonFp8Backend, q, place.device)
    expected = forward(PagedFp8Backend, q.float(), "cpu")
    assert (got - expected).norm() / expected.norm() < allowed


@on_every_place
def test_an_engine_says_what_it_says_on_a_cpu(tmp_path: Path, place: Place) -> None:
    check_engine(tmp_path, place, kv_cache_dtype="fp8")


def check_engine(tmp_path: Path, place: Place, **bits: str) -> None:
    """With graphs and blocks that are swapped. Float32 products differ in their last bits, which may turn a rounding
    to `bits` and with it a near-tie."""
    folder = make_hf_folder(tmp_path, head_dim=64)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [[number + 3] * (4 + 5 * number) for number in range(6)]
    said = []
    for device in ("cpu", place.device):
        llm = LLM(
            str(folder), skip_tokenizer_init=True, dtype="float32", device=device, max_model_len=64,
            num_kv_blocks=12, preemption_mode="swap", swap_space=0.01, **bits,
        )  # fmt: skip
        said.append([output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)])
    assert sum(a[0] == b[0] for a, b in zip(*said, strict=True)) >= 5
    assert sum(a == b for a, b in zip(*said, strict=True)) >= 3
