"""Compiles the attention kernels for a GPU, which needs none, and prints what came out as JSON.

Run as a program, outside of pytest: there, without a GPU, Triton interprets. `python -m tests.m4.attention_aot few`
compiles what a run of the tests looks at, `all` every dtype, head size and tile; a word behind it names a kernel. As
many at a time as there are CPUs. COMPILE_FOR=80 (or 75, 89, 100, 120) is a compute capability other than Hopper's 90,
gfx90a and gfx942 are AMD's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from folovllm.attention.kernels import paged_decode, paged_prefill
from folovllm.attention.kernels.paged_decode import FEW_SPLITS, MAX_SPLITS
from folovllm.attention.kernels.tile import STAGES, padded_head_size, tile_tokens
from folovllm.utils.gpus import Gpu

COMPILE_FOR = os.environ.get("COMPILE_FOR", "90")
IS_AMD = COMPILE_FOR.startswith("gfx")
CAPABILITY = 0 if IS_AMD else int(COMPILE_FOR)
GPU = Gpu("amd" if IS_AMD else "nvidia", divmod(CAPABILITY, 10))
SMALL = GPU.has_small_tiles
TARGET = GPUTarget("hip", COMPILE_FOR, 64) if IS_AMD else GPUTarget("cuda", CAPABILITY, 32)
HALVES = {"89": 0, "120": 1, "gfx90a": 0, "gfx942": 1}  # two GPUs with the same tiles have every other kernel each
INSTRUCTIONS = ("cp.async.cg.shared.global", "wgmma.mma_async", "mma.sync", "ld.global.v4", "st.global.v4")
TYPES = {"tables_ptr": "*i32", "seq_lens_ptr": "*i32", "starts_ptr": "*i32", "order_ptr": "*i32", "slots_ptr": "*i64",
         "partial_ptr": "*fp32", "lse_ptr": "*fp32", "scale": "fp32"}  # fmt: skip
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class Variant(NamedTuple):
    kernel: str
    dtype: str
    head_size: int
    group: int
    block_size: int
    detail: int
    """Of paged_decode its splits, of paged_prefill the rows of its longest sequence (0: batch-invariant), of _merge the
    most splits."""

    def __str__(self) -> str:
        return "-".join(map(str, self))


FEW = [
    Variant("decode", "bf16", 128, 2, 16, 1),
    Variant("decode", "bf16", 128, 2, 16, 8),
    Variant("decode", "fp16", 80, 2, 16, 1),
    Variant("decode", "fp32", 128, 2, 16, 8),
    Variant("merge", "bf16", 128, 2, 16, MAX_SPLITS),
    Variant("prefill", "bf16", 128, 2, 16, 2000),
    Variant("prefill", "fp16", 64, 2, 16, 10),
    Variant("prefill", "bf16", 256, 2, 16, 2000),
    Variant("prefill", "fp32", 64, 2, 16, 2000),
    Variant("prefill", "bf16", 128, 2, 16, 0),
]


def every_variant() -> list[Variant]:
    """Any two of a dtype, a size that a head is padded to, and splits or a tile; and other groups and blocks."""
    found = [Variant("merge", "bf16", size, 2, 16, most) for size, most in ((64, FEW_SPLITS), (256, MAX_SPLITS))]
    for i, dtype in enumerate(("bf16", "fp16", "fp32")):
        for j, size in enumerate((16, 32, 64, 80, 128, 256)):
            found.append(Variant("decode", dtype, size, 2, 16, (1, 8)[(i + j) % 2]))
            found += [Variant("prefill", dtype, size, 2, 16, rows) for rows in ((0, 60), (10, 2000))[(i + j) % 2]]
    for i, (group, block_size) in enumerate(((1, 32), (4, 256), (7, 24), (32, 16))):
        for j, dtype in enumerate(("bf16", "fp32")):
            found.append(Variant("decode", dtype, 128, group, block_size, (1, 8)[(i + j) % 2]))
            found.append(Variant("prefill", dtype, 128, group, block_size, (60, 2000)[(i + j) % 2]))
    return list(dict.fromkeys([*FEW, *found]))


def compile_variant(variant: Variant) -> dict[str, Any]:
    head_pad, itemsize = padded_head_size(variant.head_size), 4 if variant.dtype == "fp32" else 2
    block_n, num_warps, kernel = tile_tokens(head_pad, itemsize, SMALL), 4, None
    constants: dict[str, Any] = {"GROUP": variant.group, "HEAD_SIZE": variant.head_size, "HEAD_PAD": head_pad}
    if variant.kernel == "decode":
        kernel = paged_decode._paged_decode
        group_pad = max(16, triton.next_power_of_2(variant.group))
        num_warps = paged_decode.decode_warps(group_pad, head_pad, itemsize)
        constants |= {
            "GROUP_PAD": group_pad, "BLOCK_SIZE": variant.block_size,
            "BLOCK_N": block_n, "SPLIT": variant.detail > 1, "ORDERED": True, "INTERPRETED": False,
        }  # fmt: skip
    elif variant.kernel == "prefill":
        kernel = paged_prefill._paged_prefill
        rows = variant.detail or paged_prefill.MOST_ROWS[-1]
        block_m, block_n, num_warps = paged_prefill.choose_tiles(rows, head_pad, itemsize, SMALL)
        constants |= {
            "BLOCK_SIZE": variant.block_size, "BLOCK_M": block_m, "BLOCK_N": block_n, "BY_POSITION": not variant.detail,
            "INTERPRETED": False,
        }  # fmt: skip
    else:
        kernel = paged_decode._merge
        constants |= {"BLOCK_N": block_n, "MOST_SPLITS": variant.detail}
    return compile_kernel(kernel, variant.dtype, constants, num_warps)


def compile_kernel(
    kernel: Any, dtype: str, constants: dict[str, Any], num_warps: int, stages: int = STAGES, **types: str
) -> dict[str, Any]:
    """types: of the arguments that are not of the dtype. A kernel that can be launched before the one in front of it is
    over is compiled so for a Hopper GPU, as the engine does. GPUs before 8.0 have float16 in the place of bfloat16."""
    constants = {**constants, "DEPENDENT": CAPABILITY == 90}
    dtype = "fp16" if dtype == "bf16" and not IS_AMD and CAPABILITY < 80 else dtype
    signature: dict[str, str] = {}
    known: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for place, param in enumerate(kernel.params):
        name = param.name
        if name in constants:
            signature[name], known[(place,)] = "constexpr", constants[name]
            continue
        signature[name] = {**TYPES, **types}.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")
        # As at run time, where addresses and strides are multiples of 16, and this is looked at if it may be.
        if name != "scale" and not (param.do_not_specialize or param.do_not_specialize_on_alignment):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, known, attributes)
    options = {"num_warps": num_warps, "num_stages": GPU.stages(stages)}
    if IS_AMD:
        triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: TARGET))  # what a kernel asks
        compiled = triton.compile(source, target=TARGET, options=options)
        code = compiled.asm["amdgcn"]
        usage = {name: int(value) for name, value in re.findall(r"\.(\w+): +(\d+)\n", code)}
        counts = {"registers": usage["vgpr_count"], "stack": usage["private_segment_fixed_size"]}
        counts |= {"shared": compiled.metadata.shared, "traps": code.count("s_trap")}
        return {**counts, "warps": num_warps, "tensor_memory": 0}
    options["launch_pdl"] = constants["DEPENDENT"] and "DEPENDENT" in kernel.arg_names
    compiled = triton.compile(source, target=TARGET, options=options)
    ptx, (registers, stack) = compiled.asm["ptx"], resources(compiled.asm["cubin"])
    found = {"shared": compiled.metadata.shared, "registers": registers, "stack": stack, "warps": num_warps,
             "tensor_memory": compiled.metadata.tmem_size, "traps": len(re.findall(r"\btrap;", ptx))}  # fmt: skip
    if CAPABILITY != 90:  # the tests of single instructions are Hopper's, and a third of the time goes to reading them
        return found
    machine, counts = Sass(compiled.asm["cubin"]), {name: ptx.count(name) for name in INSTRUCTIONS}
    return {**found, "waits": waits_in_loop(ptx), "loops": machine.loops(), "early": machine.early(),
            "asked_early": machine.asked_early(), "size": len(machine.code), **counts}  # fmt: skip


class Sass:
    """What a multiprocessor runs: the instructions of a kernel, with their addresses."""

    def __init__(self, cubin: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            text = subprocess.run([CUOBJDUMP, "-sass", file.name], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+([^;]+);", text)
        self.code = [(int(address, 16), instruction.strip()) for address, instruction in found]

    def loops(self) -> list[dict[str, int]]:
        """Of each loop, which is what lies between a branch back and its aim: how many instructions it has, and how
        many of some kinds."""
        found = []
        for place, (address, instruction) in enumerate(self.code):
            aim = re.search(r"\bBRA\b[^0]*(0x[0-9a-f]+)", instruction)
            if aim and (start := int(aim[1], 16)) < address:
                body = [text for at, text in self.code[: place + 1] if at >= start]
                kinds = {kind: sum(kind in text for text in body) for kind in ("BAR", "MUFU.EX2", "LDG", "LDG.E.128")}
                found.append({"size": len(body), **kinds})
        return found

    def early(self) -> list[str] | None:
        """The instructions that touch memory before the kernel waits for the one in front of it; None: it never
        waits."""
        waits = [address for address, text in self.code if "ACQBULK" in text]
        touches = re.compile(r"\b(LDG|STG|LDGSTS|LD|ST|ATOM|RED)\b")
        return [text for address, text in self.code if address < waits[0] and touches.search(text)] if waits else None

    def asked_early(self) -> int:
        """How many instructions ask the L2 cache for memory before that wait: nothing is read or written yet."""
        waits = [address for address, text in self.code if "ACQBULK" in text]
        return sum("UBLKPF" in text for address, text in self.code if waits and address < waits[0])


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers a thread, bytes of its stack, which is where registers are spilled to), as NVIDIA's tool tells."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK"))  # type: ignore[index]
    return registers, stack


def waits_in_loop(ptx: str) -> list[int]:
    """How many groups of copies may be under way still, at each wait inside of the longest loop. 0: all must have come.
    A loop is what lies between a label and a branch back to it."""
    labels: dict[str, int] = {}
    longest: list[str] = []
    lines = ptx.splitlines()
    for place, line in enumerate(lines):
        if label := re.match(r"\s*(\$\w+):", line):
            labels[label[1]] = place
        elif (branch := re.search(r"\bbra(?:\.uni)?\s+(\$\w+)", line)) and branch[1] in labels:
            longest = max(longest, lines[labels[branch[1]] : place], key=len)
    return [int(count) for count in re.findall(r"cp\.async\.wait_group\s+(\d+)", "\n".join(longest))]


def compile_all(compile_one: Callable[[Any], dict[str, Any]], variants: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Of each variant, under its name: what came out."""
    first, *others = variants[HALVES[COMPILE_FOR] :: 2] if COMPILE_FOR in HALVES else variants
    found = {str(first): compile_one(first)}  # before the pool, for all: Triton hashes itself when it first compiles
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return found | dict(zip(map(str, others), pool.map(compile_one, others), strict=True))


if __name__ == "__main__":
    variants, named = FEW if sys.argv[1] == "few" else every_variant(), sys.argv[2:]
    wanted = [variant for variant in variants if not named or variant.kernel in named]
    json.dump(compile_all(compile_variant, wanted), sys.stdout)
