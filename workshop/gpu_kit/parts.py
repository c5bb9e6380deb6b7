"""The parts, in the order in which they run: the command of each, how long it may take, and how to read what it wrote.

Correct first, then fast, and what matters least last. Each is a process of its own: a CUDA error that sticks ends one
part, and none inherits another's memory. `limit` is the most that a part gets; `need` is what the ones before must
leave for it, so that a slow part takes its time from what is left over and not from those behind it. All needs
together, the first part's too, are less than the minutes that the kit has: it ends in time whatever the parts do, and
what takes no longer than its need is never cut.

Needs are a little more than what an H200's machine with 16 cores took. Those of `attention` and `prefill`, which are
smaller now, and of `beside` are reckoned; 40 s are for a machine whose disk is cold.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workshop.gpu_kit import races, recorder

# What the parts that measure the published workload leave out, one at a time: those that are worth most.
WITHOUT = ["graphs", "sampling", "attention"]
WEIGHTS = ["bfloat16", "w4a16", "fp8"]
ENDING = 1.5
"""Seconds that a part may take beyond its limit: its processes are killed, and the driver gives back what they had."""
# Limits, needs and the minutes of all are for a GPU's machine with 16 cores. A rehearsal may have two, and the question
# there is whether the commands work.
REHEARSAL = 8
MODULE = [sys.executable, "-m"]
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")

Reader = Callable[[Path, str], "dict[str, Any] | None"]


@dataclass(frozen=True)
class Part:
    name: str
    title: str
    argv: list[str]
    limit: float
    """Seconds, at the most."""
    need: float
    """Seconds that parts before this one leave for it."""
    output: Path
    """What the command writes; it need not."""
    read: Reader = field(default=lambda path, log: read_json(path))
    """The output and the log -> what was measured; None: nothing."""
    env: dict[str, str] = field(default_factory=dict)
    may_refuse: bool = False
    """What it leaves out, or a peer, may be what there is not. A refusal of any other part is a failure."""


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it did not come so far, or was ended while it wrote
        return None
    return found


@dataclass(frozen=True)
class Sizes:
    """What is measured, in full and for a rehearsal; all are options of the commands."""

    shape: str
    dtype: str
    tests: list[str]
    attention: list[str]
    prefill: list[str]
    decode: list[str]
    profile: list[str]
    sampling: list[str]
    tiles: list[str]
    products: list[str]
    codes: list[str]
    weights: list[str]
    speculation: list[str]
    preset: list[str]
    beside: list[str]
    startup: list[str]


FULL = Sizes(
    shape="qwen3-0.6b",
    dtype="bfloat16",
    tests=["-n", "12"],
    attention=["--batch-sizes", "1", "8", "64", "--contexts", "1024", "--rounds", "2"],
    prefill=["--batch-sizes", "1", "8", "--contexts", "1024", "4096", "--rounds", "1"],
    decode=["--batch-sizes", "1", "8", "64", "256", "--context", "1024", "--steps", "32", "--rounds", "2"],
    profile=["--batch-sizes", "1", "8", "64", "256", "--context", "512", "--steps", "8"],
    sampling=["--sizes", "1", "64", "256"],
    tiles=["--sizes", "1", "64", "256", "--context", "1024"],
    products=["--sizes", "1", "32", "256"],
    codes=["--sizes", "1", "32", "256"],
    weights=["--num-requests", "8", "--input-len", "128", "--output-len", "128", "--rounds", "3"],
    speculation=["--batch-sizes", "1", "8", "32", "--input-len", "128", "--output-len", "128", "--rounds", "3"],
    preset=["--rounds", "1"],
    # 35% of 80 GB hold the 169,000 tokens that are there at once; the peer reserves for all 277,000, 32 GB.
    beside=["--rounds", "1", "--gpu-memory-utilization", "0.35"],
    startup=["--sequences", "256", "--prompt-len", "512", "--output-len", "48", "--max-model-len", "4096"],
)
TINY = Sizes(
    shape="qwen3-tiny",
    dtype="float32",
    tests=["-n", "2"],
    attention=["--batch-sizes", "1", "2", "--contexts", "16", "--rounds", "1"],
    prefill=["--batch-sizes", "1", "--contexts", "16", "--rounds", "1"],
    decode=["--batch-sizes", "1", "2", "--context", "8", "--steps", "2", "--rounds", "1"],
    profile=["--batch-sizes", "1", "2", "--context", "8", "--steps", "2"],
    sampling=["--sizes", "2"],
    tiles=["--sizes", "1", "--context", "70"],
    products=["--sizes", "1", "3"],
    codes=["--sizes", "1"],
    weights=["--num-requests", "2", "--input-len", "8", "--output-len", "4", "--rounds", "1"],
    speculation=["--batch-sizes", "1", "--input-len", "8", "--output-len", "6", "--rounds", "1"],
    preset=["--rounds", "1", "--num-requests", "4", "--input-len", "12", "--output-len", "8"],
    beside=["--rounds", "1", "--num-requests", "4", "--input-len", "12", "--output-len", "8"],
    startup=["--sequences", "4", "--prompt-len", "12", "--output-len", "4", "--max-model-len", "64"],
)


def make_parts(device: str, *, tiny: bool, folder: Path) -> list[Part]:
    """`folder` takes what the commands write, and a cache for what Triton compiles."""
    sizes = TINY if tiny else FULL
    shape, on = ["--shape", sizes.shape], ["--device", device]
    preset = ["preset", "nano-vllm", *shape, "--dtype", sizes.dtype, *on]

    def bench(name: str, title: str, argv: list[str], limit: float, need: float) -> Part:
        output = folder / f"{name}.json"
        return Part(name, title, [*MODULE, "workshop.bench", *argv, "--json", str(output)], limit, need, output)

    def own(name: str, title: str, argv: list[str], limit: float, need: float, **more: Any) -> Part:
        output = folder / f"{name}.json"
        command = [*MODULE, f"workshop.gpu_kit.{argv[0]}", *argv[1:], "--json", str(output)]
        return Part(name, title, command, limit, need, output, **more)

    # What breaks everything is found first, also where the rest is cut off.
    files = ["tests/gpu/test_engine_gpu.py", "tests/gpu/test_model_gpu.py", "tests/gpu"]
    tests = Part(
        "tests",
        "tests/gpu",
        [
            *MODULE,
            "pytest",
            *files,
            "-q",
            "--tb=short",
            "-p",
            "no:randomly",
            "-p",
            "workshop.gpu_kit.recorder",
            *sizes.tests,
        ],
        limit=200,
        need=95,
        output=folder / "tests.jsonl",
        read=lambda path, log: recorder.read(path),
        env={recorder.VARIABLE: str(folder / "tests.jsonl")},
    )
    typed = [*shape, "--dtype", sizes.dtype, *on]
    attention = ["attention", *shape, "--dtypes", sizes.dtype, *on]
    startup = ["startup", *typed, *sizes.startup]
    compiled = {"TRITON_CACHE_DIR": str(folder / "triton")}  # of these two parts alone: the first finds it empty
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    parts = [
        own("machine", "the machine", ["machine", *on], limit=90, need=40),
        tests,
        own("profile", "decode steps, kernel by kernel", ["profile", *typed, *sizes.profile], limit=60, need=20),
        bench("preset", "nano-vllm's workload", [*preset, *sizes.preset], limit=60, need=24),
        bench("attention", "decode attention", [*attention, *sizes.attention], limit=50, need=25),
        bench("decode", "decode steps", ["decode", *typed, *sizes.decode], 50, need=27),
        own("sampling", "sampling", ["kernels", "sampling", *typed, *sizes.sampling], 40, need=7, env=interpreted),
        own("products", "products", ["kernels", "products", *typed, *sizes.products], limit=40, need=7),
        own("codes", "products with codes", ["kernels", "codes", *typed, *sizes.codes], 60, need=9, env=interpreted),
        *(
            replace(
                bench(
                    f"weights-{kind}",
                    f"throughput, {kind}",
                    ["throughput", *typed, *sizes.weights, *([] if kind == "bfloat16" else ["--quantization", kind])],
                    40,
                    18,
                ),
                may_refuse=True,
            )
            for kind in WEIGHTS
        ),
        bench("speculation", "guesses against none", ["speculation", *typed, *sizes.speculation], 60, need=26),
        own("tiles", "decode with other tiles", ["kernels", "tiles", *typed, *sizes.tiles], 50, 10, env=interpreted),
        *(
            replace(
                bench(
                    f"without-{name}",
                    f"the workload without {name}",
                    [*preset, *sizes.preset, "--without", name],
                    50,
                    27,
                ),
                may_refuse=True,
            )
            for name in WITHOUT
        ),
        bench("prefill", "prefill attention", [*attention, "--prefill", *sizes.prefill], limit=40, need=24),
        own("start-cold", "start-up, nothing compiled", startup, limit=60, need=27, env=compiled),
        own("start-warm", "start-up, all compiled", startup, limit=40, need=18, env=compiled),
        Part(
            "races",
            "racecheck on the attention kernels",
            [*sanitizer(device), *MODULE, "workshop.gpu_kit.races", *on, "--json", str(folder / "races.json")],
            limit=60,
            need=15,
            output=folder / "races.json",
            read=lambda path, log: races.read(read_json(path), log),
            env=interpreted,
        ),
        replace(
            bench(
                "beside",
                "the workload beside Hugging Face's continuous batching",
                [*preset, *sizes.beside, "--peer", "hf-continuous"],
                limit=100,
                need=38,
            ),
            may_refuse=True,
        ),
    ]
    return [replace(part, limit=slack(device) * part.limit, need=slack(device) * part.need) for part in parts]


def slack(device: str) -> int:
    """How many times as long all may take on this device."""
    return REHEARSAL if device == "cpu" else 1


def sanitizer(device: str) -> list[str]:
    """The program that looks for races, and its options; nothing where it is not."""
    if device == "cpu":
        return []
    found = next((path for path in map(shutil.which, SANITIZERS) if path and os.access(path, os.X_OK)), None)
    return [found, "--tool", "racecheck", "--print-limit", "20", "--error-exitcode", "9"] if found else []
