"""The KV cache in int8: its codes and scales, and attention beside float64 over the numbers that they mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from folovllm.attention.backends.int8 import (
    CPUInt8Backend,
    CPUInvariantInt8Backend,
    PagedInt8Backend,
    codes_of,
    round_heads,
    scales_of,
)
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from tests.m4.cpu_target import relative_error, target  # noqa: F401

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 5e-3}  # bfloat16: the result's own rounding


def test_a_code_is_a_number_in_127ths_of_the_largest_of_its_head() -> None:
    x = torch.tensor([[0.0, 1.0, -2.0, 4.0], [0.0, 0.0, 0.0, 0.0], [127.0, 0.5, 1.5, -2.5]])
    codes, scales = round_heads(x)
    assert codes.tolist() == [[0, 32, -64, 127], [0, 0, 0, 0], [127, 0, 2, -2]]  # 31.75; ties go to even
    assert scales.tolist() == [pytest.approx(4 / 127), 0.0, 1.0]


def hard_heads() -> torch.Tensor:
    """[heads, 16]: ties, zeros, numbers that a float32 hardly holds, the largest, and what is not finite."""
    ties = torch.cat([torch.tensor([127.0]), torch.arange(15) - 7.5])
    scales = torch.tensor([1.0, 2.0**-20, 2.0**100, 0.0, 1e-40, 190 * 2.0**-149, -1.0])
    broken = torch.zeros(3, 16)
    broken[0, 3], broken[1, 5], broken[2, 0] = torch.nan, torch.inf, -torch.inf
    return torch.cat([ties * scales[:, None] / 127, ties * scales[:, None], torch.randn(30, 16), broken])


def same_cache(got: torch.Tensor, want: torch.Tensor) -> None:
    """In every bit, but for the codes of a head whose scale is NaN."""
    assert torch.equal(scales_of(got).nan_to_num(-1.0), scales_of(want).nan_to_num(-1.0))
    sound = ~scales_of(want).isnan()
    assert torch.equal(codes_of(got)[sound], codes_of(want)[sound])


def written(backend: type, x: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """A cache in which token i, at slot 2 * i, has the heads x[i] [2, 16] as its keys, and -x[i] as its values."""
    one = backend(2, 2, 16, 1.0)
    kv_cache = torch.zeros(one.kv_cache_shape(len(x), 2), dtype=torch.int8, device=device)
    one.write(x.to(device), -x.to(device), kv_cache, 2 * torch.arange(len(x), device=device))
    return kv_cache.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("target")
def test_the_compiled_kernel_writes_what_torch_writes(dtype: torch.dtype) -> None:
    x = hard_heads()[1:].view(-1, 2, 16).to(dtype)
    want = written(PagedInt8Backend, x)
    same_cache(written(CPUInt8Backend, x), want)
    assert scales_of(want).isnan().sum() == 2 * 3
    for i in range(len(x)):  # alone, the same codes
        assert torch.equal(written(CPUInt8Backend, x[i : i + 1])[:, 0], written(CPUInt8Backend, x)[:, i])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_triton_kernel_writes_what_torch_writes(dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernel")
    from folovllm.attention.backends.int8 import TritonInt8Backend

    x = hard_heads()[1:].view(-1, 2, 16).to(dtype)
    if dtype == torch.bfloat16:
        x[x.abs() < 2.0**-126] = 0  # the interpreter makes zeros of these
    same_cache(written(TritonInt8Backend, x), written(PagedInt8Backend, x))


class Batch:
    """Decodes in front of prompts' parts, over scattered blocks. Scales that no token has written are NaN."""

    def __init__(
        self, dtype: torch.dtype, lens: list[int], new: list[int], heads: int, kv_heads: int, size: int, block_size: int
    ) -> None:
        self.shape, self.new = (heads, kv_heads, size, 0.25), new
        plain, width = PagedInt8Backend(*self.shape), -(-max(lens) // block_size)
        tables = (torch.randperm(len(lens) * width) + 1).view(len(lens), width).int()
        self.kv_cache = torch.full(plain.kv_cache_shape(len(lens) * width + 1, block_size), 99, dtype=torch.int8)
        scales_of(self.kv_cache).fill_(torch.nan)
        for table, length in zip(tables, lens, strict=True):
            places = torch.arange(length)
            slots = table.long()[places // block_size] * block_size + places % block_size
            plain.write(*torch.randn(2, length, kv_heads, size).to(dtype), self.kv_cache, slots)
        self.q = torch.randn(sum(new), heads, size).to(dtype)
        starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
        self.metadata = AttentionMetadata(
            starts, torch.tensor(lens, dtype=torch.int32), torch.zeros(sum(new), dtype=torch.int64), tables,
            max_query_len=max(new), max_seq_len=max(lens), num_decodes=new.count(1),
        )  # fmt: skip

    def attend(self, backend: type) -> torch.Tensor:
        return backend(*self.shape).forward(self.q, self.kv_cache, self.metadata)

    def move(self, device: str) -> None:
        self.q, self.kv_cache = self.q.to(device), self.kv_cache.to(device)
        tensors = ("query_start_loc", "seq_lens", "slot_mapping", "block_tables")
        self.metadata = replace(self.metadata, **{name: getattr(self.metadata, name).to(device) for name in tensors})

    def exact(self) -> torch.Tensor:
        numbers = codes_of(self.kv_cache).double() * scales_of(self.kv_cache).double().unsqueeze(-1)
        return PagedTorchBackend(*self.shape).forward(self.q.double(), numbers, self.metadata)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "size", "block_size"), [(4, 2, 16, 3), (7, 1, 48, 16), (2, 1, 128, 4)])
@pytest.mark.usefixtures("target")
def test_cpu_attention_is_that_over_the_numbers_that_the_codes_mean(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, block_size: int
) -> None:
    batch = Batch(dtype, [3, 257, 15, 6, 300], [1, 1, 1, 3, 70], heads, kv_heads, size, block_size)
    want = batch.exact()
    for backend in (PagedInt8Backend, CPUInt8Backend, CPUInvariantInt8Backend):
        assert relative_error(batch.attend(backend), want) < TOLERANCE[dtype], backend.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "block_size"), [(16, 4), (24, 6)])
def test_triton_attention_is_that_over_the_numbers_that_the_codes_mean(
    dtype: torch.dtype, size: int, block_size: int
) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the compiled kernels")
    from folovllm.attention.backends.int8 import TritonInt8Backend, TritonInvariantInt8Backend

    batch = Batch(dtype, [3, 20, 6, 30], [1, 1, 3, 10], 4, 2, size, block_size)
    want = batch.exact()
    for backend in (TritonInt8Backend, TritonInvariantInt8Backend):
        assert relative_error(batch.attend(backend), want) < TOLERANCE[dtype], backend.name


def test_a_block_in_which_scales_have_no_place_is_refused() -> None:
    with pytest.raises(
        ValueError, match="^block_size must be a multiple of 4 for kv_cache_dtype 'int8' with heads of 6"
    ):
        PagedInt8Backend(2, 1, 6, 1.0).kv_cache_shape(8, 3)
