"""The parts, in the order in which they run: the command of each, how long it may take, and how to read what it wrote.

What breaks everything first, then what has been predicted, all tests, and what matters least last. Each runs in
another process: a CUDA error that sticks ends one part, and none inherits another's memory. `limit` is the most that a
part gets; `need` is what the ones before must leave for it, so that a slow part takes its time from what is left over
and not from those behind it. All needs together, the first part's too, are less than the minutes that the kit has: it
ends in time whatever the parts do, and what takes no longer than its need is never cut.

Needs are a little more than what an H200's machine with 16 cores took; those of `first`, `cache-*`, `serving`,
`ablate-*`, `8b-*`, `prefill` and `ranks` are reckoned, as 9 s of `start` for 16 kernels and 12 graphs more; 40 s are
for a machine whose disk is cold. What a run has settled, or a whole step shows, runs by name alone or is left out:
kernels by themselves, prompts' attention, a start, races, the workload without graphs and the like, the peers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CACHES = ["fp8", "int8"]
WEIGHTS = ["bfloat16", "w4a16"]
LARGE_WEIGHTS = ["bfloat16", "w4a16", "fp8"]
ENDING = 1.5
"""Seconds that a part may take beyond its limit: its processes are killed, and the driver gives back what they had."""
# Limits, needs and the minutes of all are for a GPU's machine with 16 cores. A rehearsal may have two, and the question
# there is whether the commands work.
REHEARSAL = 8
MODULE = [sys.executable, "-m"]
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
# Lines of pytest's log, with xdist's workers and without, and of its durations.
OUTCOME = re.compile(r"^(?:\[gw\d+\] \[ *\d+%\] ([A-Z]+) (\S.*?)|(\S+::\S.*?) ([A-Z]+)(?: .*)?)\s*$", re.MULTILINE)
DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)

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
    only_by_name: bool = False
    """It runs where --only names it."""
    may_refuse: bool = False
    """What it leaves out, or a peer, may be what there is not. A refusal of any other part is a failure."""


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it did not come so far, or was ended while it wrote
        return None
    return found


def read_tests(path: Path, log: str) -> dict[str, Any]:
    """How many tests ended how, those that went wrong, and those that took longest; also of a run that was killed."""
    ended = [(a or d, b or c) for a, b, c, d in OUTCOME.findall(log)]
    return {
        "counts": Counter(outcome.lower() for outcome, _ in ended),
        "wrong": sorted({test for outcome, test in ended if outcome in ("FAILED", "ERROR")}),
        "slowest": [{"test": test, "seconds": float(seconds)} for seconds, test in DURATION.findall(log)],
    }


def read_races(path: Path, log: str) -> dict[str, Any]:
    """What the sanitizer said; None of it without one: then the results alone were checked."""
    found = SUMMARY.findall(log)
    counts = [sum(int(each[place]) for each in found) for place in range(3)]
    return {"hazards": dict(zip(("displayed", "errors", "warnings"), counts, strict=True)) if found else None}


# Options of each part's command: in full, and for a rehearsal.
SIZES = {
    "typed": ("--shape qwen3-0.6b --dtype bfloat16", "--shape qwen3-tiny --dtype float32"),
    "tests": ("-n 12", "-n 2"),
    "prefill": (
        "--shape qwen3-0.6b --dtypes bfloat16 --batch-sizes 1 8 --contexts 1024 4096 --rounds 1",
        "--shape qwen3-tiny --dtypes float32 --batch-sizes 1 --contexts 16 --rounds 1",
    ),
    "decode": (
        "--batch-sizes 1 8 64 256 --context 1024 --steps 32 --rounds 2",
        "--batch-sizes 1 2 --context 8 --steps 2 --rounds 1",
    ),
    "ablate": (
        "--input-len 128 --output-len 128 --rounds 2",
        "--input-len 8 --output-len 4 --rounds 1",
    ),
    "large": (
        "--shape qwen3-8b --dtype bfloat16 --batch-sizes 1 16 256 --context 128 --steps 16 --rounds 1",
        "--shape qwen3-tiny --dtype float32 --batch-sizes 1 2 --context 8 --steps 2 --rounds 1",
    ),
    "serving": (
        "",
        "--prompts 8 --sizes 1 2 --context 8 --steps 2 --long 40 --rates 50 --seconds 0.1 --input-len 8 --output-len 4",
    ),
    "profile": ("--sizes 1 8 64 256 --context 512 --steps 8", "--sizes 1 2 --context 8 --steps 2"),
    "sampling": ("--sizes 1 64 256", "--sizes 2"),
    "products": ("--sizes 1 32 256", "--sizes 1 3"),
    "codes": ("--sizes 1 32 256", "--sizes 1"),
    "weights": (
        "--num-requests 8 --input-len 128 --output-len 128 --rounds 3",
        "--num-requests 2 --input-len 8 --output-len 4 --rounds 1",
    ),
    "ranks": ("--sizes 1 64", "--sizes 1 2 --context 8 --steps 2"),
    "speculation": (
        "--batch-sizes 1 8 32 --input-len 128 --output-len 128 --rounds 3",
        "--batch-sizes 1 --input-len 8 --output-len 6 --rounds 1",
    ),
    "preset": ("--rounds 3", "--rounds 1 --num-requests 4 --input-len 12 --output-len 8"),
    "startup": (
        "--sequences 256 --prompt-len 512 --output-len 48 --max-model-len 4096",
        "--sequences 4 --prompt-len 12 --output-len 4 --max-model-len 64",
    ),
}  # fmt: skip
FIRST = " ".join(
    f"tests/gpu/test_{name}_gpu.py" for name in ("engine", "model", "few_rows", "fused_decode", "prompt_graphs")
)
PYTEST = "-v --tb=short --durations=5 -p no:randomly"


def make_parts(device: str, *, tiny: bool, folder: Path) -> list[Part]:
    """`folder` takes what the commands write, and a cache for what Triton compiles."""
    sizes = {name: each[tiny] for name, each in SIZES.items()}
    on = f"--device {device}"
    typed, preset = f"{sizes['typed']} {on}", f"preset nano-vllm {sizes['typed']} {on} {sizes['preset']}"
    compiled = {"TRITON_CACHE_DIR": str(folder / "triton")}  # of one part alone, which finds it empty
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}

    def part(name: str, title: str, command: str, limit: float, need: float, **more: Any) -> Part:
        output = folder / f"{name}.json"
        return Part(name, title, [*MODULE, *command.split(), "--json", str(output)], limit, need, output, **more)

    def bench(name: str, title: str, options: str, limit: float, need: float, **more: Any) -> Part:
        return part(name, title, f"workshop.bench {options}", limit, need, **more)

    def kernels(kind: str, title: str, limit: float, need: float) -> Part:
        command = f"workshop.gpu_kit.kernels {kind} {typed} {sizes[kind]}"
        return part(kind, title, command, limit, need, env=interpreted)

    def weights(kind: str) -> Part:
        options = f"throughput {typed} {sizes['weights']}" + ("" if kind == "bfloat16" else f" --quantization {kind}")
        return bench(f"weights-{kind}", f"throughput, {kind}", options, 40, 18, may_refuse=True)

    def large(kind: str) -> Part:
        options = f"decode {sizes['large']} {on}" + ("" if kind == "bfloat16" else f" --quantization {kind}")
        return bench(f"8b-{kind}", f"decode steps of 8B, {kind}", options, 60, 22, may_refuse=True)

    def ablate(requests: int) -> Part:
        features = "--features few-rows fused-decode prompt-graphs padded-rows"
        options = f"ablate {typed} {features} {sizes['ablate']} --num-requests {requests}"
        return bench(f"ablate-{requests}", f"one feature left out, {requests} requests", options, 80, 60)

    def cached(kind: str) -> Part:
        options = f"{preset} --kv-cache-dtype {kind}".replace("--rounds 3", "--rounds 1")
        return bench(f"cache-{kind}", f"the workload, cache in {kind}", options, 50, 22, may_refuse=True)

    def pytest(name: str, title: str, options: str, limit: float, need: float, read: Reader, **more: Any) -> Part:
        argv = [*more.pop("under", []), *MODULE, "pytest", *options.split(), *PYTEST.split()]
        return Part(name, title, argv, limit, need, folder / name, read, **more)

    startup = f"workshop.gpu_kit.startup {typed} {sizes['startup']}"
    serving = f"workshop.gpu_kit.serving {typed} {sizes['serving']}"
    of_ranks = f"workshop.gpu_kit.ranks {typed} {sizes['ranks']}"
    parts = [
        part("machine", "the machine", f"workshop.gpu_kit.startup {on}", 90, 40),
        pytest("first", "what breaks everything, of tests/gpu", f"{FIRST} {sizes['tests']}", 45, 45, read_tests),
        bench("preset", "nano-vllm's workload", preset, 70, 35),
        bench("decode", "decode steps", f"decode {typed} {sizes['decode']}", 50, 30),
        kernels("profile", "decode steps, kernel by kernel", 60, 20),
        *map(ablate, (8, 1)),
        *map(cached, CACHES),
        *(large(kind) for kind in LARGE_WEIGHTS[:2]),
        part("serving", "first token, filters, a long decode, arrivals", serving, 70, 45),
        pytest("tests", "tests/gpu", f"tests/gpu {sizes['tests']}", 200, 108, read_tests),
        bench("speculation", "draft tokens against none", f"speculation {typed} {sizes['speculation']}", 60, 26),
        *(replace(each, only_by_name=True) for each in (
            *(large(kind) for kind in LARGE_WEIGHTS[2:]),
            kernels("sampling", "sampling", 40, 8), kernels("products", "products", 40, 7),
            kernels("codes", "products with codes", 60, 9),
            bench("prefill", "prefill attention", f"attention --prefill {sizes['prefill']} {on}", 40, 22),
            part("start", "start-up, nothing compiled", startup, 70, 36, env=compiled),
            part("ranks", "a share, a group of one, two ranks", of_ranks, 50, 20),
            *map(weights, WEIGHTS),
            pytest(
                "races", "racecheck on the attention kernels", "tests/gpu/test_races_gpu.py", 70, 25, read_races,
                under=sanitizer(device), env=interpreted,
            ),
        )),
    ]  # fmt: skip
    return [replace(part, limit=slack(device) * part.limit, need=slack(device) * part.need) for part in parts]


def slack(device: str) -> int:
    """How many times as long all may take on this device."""
    return REHEARSAL if device == "cpu" else 1


def sanitizer(device: str) -> list[str]:
    """The program that finds races, and its options; nothing where it is not."""
    if device == "cpu":
        return []
    found = next((path for path in map(shutil.which, SANITIZERS) if path and os.access(path, os.X_OK)), None)
    return [found, "--tool", "racecheck", "--print-limit", "20", "--error-exitcode", "9"] if found else []
