"""The fused layers' and the sampler's kernels compile for an H200, without one: Triton brings NVIDIA's assembler along.

The interpreter runs a kernel as Python and knows no types of loop variables, no layouts and no registers; here they are
checked. In a process of its own, because a process has either the interpreter or the compiler.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # ten kernels through a compiler: seven seconds

COMPILE = """
import json, re, subprocess, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from folovllm.layers.kernels.add_rms_norm import _add_rms_norm_kernel as norm
from folovllm.layers.kernels.norm_rotary import _norm_rotary_kernel as rotary
from folovllm.layers.kernels.silu_mul import _silu_mul_kernel as silu
from folovllm.sample.kernels.sampler import _sample_kernel as sampler

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
BF16, INT, FLOAT = "*bf16", "i32", "fp32"
SAMPLER = dict(
    row_stride=INT, temperature_ptr="*fp64", top_k_ptr="*i64", top_p_ptr="*fp64", min_p_ptr="*fp64", seed_ptr="*i64",
    seed_stride=INT, offset_ptr="*i64", token_ptr="*i64", kept_ptr="*i8", vocab_size=INT,
)
RACE = dict(NOT_FINITE=-1, MIN_DIRECT=0.1, STRIPE=1024, BLOCK=2048)
CASES = [
    (norm, dict(x_ptr=BF16, residual_ptr=BF16, weight_ptr=BF16, out_ptr=BF16, x_stride=INT, residual_stride=INT,
                size=INT, eps=FLOAT), dict(ADD=True, BLOCK=1024), 4),
    (rotary, dict(qk_ptr=BF16, weight_ptr=BF16, cos_ptr="*fp32", sin_ptr="*fp32", token_stride=INT, head_stride=INT,
                  angle_stride=INT, num_heads=INT, num_all_heads=INT, half_size=INT, eps=FLOAT),
     dict(NORM=True, HEADS=8, BLOCK=64), 2),
    (silu, dict(gate_up_ptr=BF16, out_ptr=BF16, row_stride=INT, size=INT), dict(COLUMNS=1024), 4),
    (sampler, dict(logits_ptr=BF16, **SAMPLER), dict(RACE, REPORT=False, SHIFT=16), 16),
    (sampler, dict(logits_ptr="*fp32", **SAMPLER), dict(RACE, REPORT=True, SHIFT=0), 16),
]
found = []
for kernel, arguments, constants, num_warps in CASES:
    types = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, types, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found.append([kernel.__name__, *(int(re.search(rf"{what}:(\\d+)", usage)[1]) for what in ("REG", "STACK"))])
print(json.dumps(found))
"""


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="no assembler beside Triton")
def test_kernels_compile_for_hopper_with_everything_in_registers(tmp_path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found) == 5
    for name, registers, stack in found:
        assert 0 < registers <= 128, name  # of a thread: 16 warps can have as many
        assert stack == 0, f"{name} spills"
