"""Our own CPU kernels against float64, compiled for this CPU and for one with AVX2 only; and what becomes of them where
there is no compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig

from folovllm.attention.backends import cpu as attention
from folovllm.attention.backends.cpu import CPUBackend
from folovllm.layers import compiled_ops as cpu
from folovllm.layers.compiled_ops import CompiledOps
from folovllm.layers.norm import QKNorm
from folovllm.layers.rotary import RotaryEmbedding, apply_rotary
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.weights import build_model
from folovllm.utils import cpu_kernels
from folovllm.utils.threads import SPINS
from tests.m4.cpu_target import REASON, relative_error, target  # noqa: F401

pytestmark = pytest.mark.slow
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}
needs_kernels = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")


def build(folder: Path, dtype: torch.dtype) -> DecoderForCausalLM:
    config = AutoConfig.from_pretrained(folder)
    return build_model(config, 256, dtype, torch.device("cpu"), folder, ops=CompiledOps(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 100), (70, 1024)])
@pytest.mark.usefixtures("target")
def test_norm_with_and_without_the_residual(dtype, rows, size):
    torch.manual_seed(0)
    x, residual, weight = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype), torch.randn(size)
    want = F.rms_norm(x.double(), (size,), weight.double(), 1e-5)
    assert relative_error(cpu.rms_norm(x, None, weight, 1e-5)[0], want) < TOLERANCE[dtype]
    total = x + residual
    got, stream = cpu.rms_norm(x, residual, weight, 1e-5)
    assert stream is residual
    assert torch.equal(residual, total)  # the sum is written over the residual
    assert relative_error(got, F.rms_norm(total.double(), (size,), weight.double(), 1e-5)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_size", [8, 32, 80, 128])
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.usefixtures("target")
def test_norm_of_heads_and_rotary(dtype, head_size, with_norm):
    torch.manual_seed(0)
    heads = torch.randn(40, 3 + 2 + 2, head_size).to(dtype)
    before, positions = heads.clone(), torch.randint(0, 500, (40,))
    norm = QKNorm(3, 2, head_size, 1e-6)
    weights = norm.weight.data = torch.randn(2, head_size)
    cos, sin = RotaryEmbedding(head_size, 512, {"rope_theta": 1e4})(positions)
    cpu.norm_rotary(heads, norm if with_norm else None, (cos, sin), 3, 2)
    qk = before[:, :5].double()
    if with_norm:
        per_head = torch.stack([weights[0]] * 3 + [weights[1]] * 2).double()
        qk = F.rms_norm(qk, (head_size,), None, 1e-6) * per_head
    half = head_size // 2
    swapped = torch.cat((-qk[..., half:], qk[..., :half]), dim=-1)
    angle_cos, angle_sin = cos.double(), torch.cat((sin[..., half:], sin[..., half:]), dim=-1).double()
    assert relative_error(heads[:, :5], qk * angle_cos + swapped * angle_sin) < TOLERANCE[dtype]
    assert torch.equal(heads[:, 5:], before[:, 5:])  # v stays as it was
    if dtype == torch.float32 and not with_norm:
        assert relative_error(heads[:, :5], apply_rotary(before[:, :5], cos, sin).double()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("target")
def test_swiglu_and_its_exponential_far_out(dtype):
    x = torch.cat((torch.linspace(-120, 120, 2001), torch.tensor([-1e30, 1e30, 1e-20, 0.0, torch.inf]))).to(dtype)
    got = cpu.silu_mul(torch.stack((x, torch.ones_like(x))).reshape(1, -1))
    want = F.silu(x.double())
    assert torch.allclose(got[0].double(), want, rtol=TOLERANCE[dtype], atol=1e-36)
    assert cpu.silu_mul(torch.tensor([[torch.nan, 1.0]], dtype=dtype)).isnan().all()


@pytest.mark.parametrize(("dtype", "cache_dtype"), CPUBackend.dtypes)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_size"), [(2, 2, 16), (7, 1, 48), (12, 2, 128)])
@pytest.mark.usefixtures("target")
def test_decode_reads_scattered_blocks_and_nothing_else(dtype, cache_dtype, num_heads, num_kv_heads, head_size):
    """The cache holds NaN wherever no token has been written. Lengths at and around the ends of parts and blocks."""
    torch.manual_seed(0)
    lens, block_size = [1, 15, 16, 17, 255, 256, 257, 700], 16
    most = -(-max(lens) // block_size)
    tables = (torch.randperm(len(lens) * most) + 1).view(len(lens), most).int()
    cache = torch.full((2, 1 + len(lens) * most, block_size, num_kv_heads, head_size), torch.nan, dtype=cache_dtype)
    q = torch.randn(2 * len(lens), num_heads, head_size).to(dtype)
    want = torch.empty(len(lens), num_heads, head_size, dtype=torch.float64)
    for i, length in enumerate(lens):
        fused = torch.randn(length, 2 * num_kv_heads, head_size).to(dtype)  # k and v are views of one projection
        k, v = fused.split([num_kv_heads, num_kv_heads], dim=1)
        place = torch.arange(length)
        slots = tables[i].long()[place // block_size] * block_size + place % block_size
        attention.store_kv(k, v, cache, slots)
        stored = cache.flatten(1, 2)[:, slots]
        assert torch.equal(stored[0], k.to(cache_dtype))
        assert torch.equal(stored[1], v.to(cache_dtype))
        keys, values = stored.double().transpose(1, 2).repeat_interleave(num_heads // num_kv_heads, dim=1)
        scores = torch.einsum("hd,hkd->hk", q[2 * i + 1].double(), keys) * 0.3
        want[i] = torch.einsum("hk,hkd->hd", scores.softmax(-1), values)
    out = torch.zeros_like(q)
    queries, seqs = 2 * torch.arange(len(lens)) + 1, torch.arange(len(lens))
    arguments = (torch.tensor(lens, dtype=torch.int32), tables, 0.3)
    attention.attend("decode", q, cache, queries, seqs, *arguments, out)
    assert relative_error(out[1::2], want) < TOLERANCE[dtype]
    assert not out[::2].any()  # other rows are not written
    for i in range(len(lens)):  # alone, the same bits
        alone = torch.zeros_like(q)
        attention.attend("decode", q, cache, queries[i : i + 1], seqs[i : i + 1], *arguments, alone)
        assert torch.equal(alone[2 * i + 1], out[2 * i + 1])


@needs_kernels
def test_a_dtype_that_the_kernels_do_not_take_says_so():
    with pytest.raises(ValueError, match=r"the weights are float16, and not float32 or bfloat16$"):
        CompiledOps(torch.float16)


@needs_kernels
def test_float16_is_read_as_paged_torch_reads_it():
    backend = CPUBackend(2, 1, 32, 1.0)
    k = torch.randn(1, 1, 32).half()
    cache = torch.zeros(2, 2, 16, 1, 32, dtype=torch.float16)
    backend.write(k, k, cache, torch.tensor([17]))
    assert torch.equal(cache[1, 1, 1], k[0])


def test_a_setting_that_is_neither_yes_nor_no(monkeypatch):
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "perhaps")
    with pytest.raises(ValueError, match="FOLOVLLM_CPU_KERNELS must be 'yes' or 'no', got 'perhaps'"):
        cpu_kernels.unavailable_reason()


@pytest.fixture
def fresh_load():
    cpu_kernels._load.cache_clear()
    yield
    cpu_kernels._load.cache_clear()


@needs_kernels
@pytest.mark.usefixtures("fresh_load")
def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler found" in (cpu_kernels.unavailable_reason() or "")
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler found"):
        cpu_kernels.library()


@needs_kernels
@pytest.mark.usefixtures("fresh_load")
def test_a_compiler_that_fails_is_quoted_and_torch_takes_over(tmp_path, monkeypatch):
    compiler = tmp_path / "broken"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit\necho "cannot do it" >&2; exit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "cannot do it" in (cpu_kernels.unavailable_reason() or "")
    assert {path.name for path in (tmp_path / "folovllm").iterdir()} <= {".lock"}  # nothing half done is left


@needs_kernels
def test_a_second_process_finds_what_the_first_compiled(tmp_path, monkeypatch):
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int panel_width() { return 7; }\n')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_kernels, "SOURCES", sources)
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    assert compiler is not None
    first = cpu_kernels.compiled(compiler)
    made = first.stat().st_mtime_ns
    assert cpu_kernels.compiled(compiler) == first
    assert first.stat().st_mtime_ns == made
    assert cpu_kernels.compiled(compiler, (*cpu_kernels.NATIVE, "-O1")) != first  # other flags
    (sources / "one.cpp").write_text('extern "C" int panel_width() { return 8; }\n')
    second = cpu_kernels.compiled(compiler)
    assert ctypes.CDLL(str(first)).panel_width() == 7
    assert ctypes.CDLL(str(second)).panel_width() == 8


def spins_after(before: str = "", **environment: str) -> str:
    """What OpenMP reads when the command has begun."""
    code = f"import os\n{before}\nimport folovllm.__main__\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    root = Path(cpu_kernels.__file__).parents[2]
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=clean | environment | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_command_asks_for_a_short_spin_and_never_over_somebodys():
    assert spins_after() == SPINS
    assert spins_after(OMP_WAIT_POLICY="active") == "None"
    assert spins_after("import sys; sys.modules['torch'] = object()") == "None"
