"""How long a checkpoint takes to load, and how much memory at the worst moment.

Each case loads in a fresh process (load_worker.py), because a process that has once used memory tells nothing
about what the next load would need. The checkpoint is in the page cache: the loader is measured, no disk.

vLLM: benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from folovllm.bench.options import add_output, add_source, command_line
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import BenchModel, progress_bar, require_at_least, shape_config
from milestones.chain import Course
from milestones.site.source import ROOT
from milestones.sources import working_tree
from milestones.trees import write_tree
from workshop.bench import load_worker
from workshop.bench.load_worker import empty_model

COLUMNS = [
    "engine",
    "checkpoint",
    "dtype",
    "weights_gb",
    "load_s",
    "first_token_s",
    "peak_gb",
    "peak_over_weights",
]
# What the engine loads and into which dtype; None: every dtype that was asked for.
CASES = {"folovllm": ("bfloat16", "float32"), "hf": ("bfloat16", "float32")}


@contextmanager
def checkpoint(model: str | None, shape: str) -> Iterator[BenchModel]:
    """A real folder, or one with random bfloat16 weights of `shape`, there as long as the block runs."""
    if model is not None:
        yield BenchModel(Path(model).name, model, "auto")
        return
    with tempfile.TemporaryDirectory(prefix="folovllm-bench-") as folder:
        write_checkpoint(Path(folder), shape)
        yield BenchModel(f"{shape} shape", folder, "auto")


def write_checkpoint(folder: Path, shape: str) -> None:
    config = shape_config(shape)
    empty = empty_model(config, torch.bfloat16)
    needed = sum(parameter.nbytes for parameter in empty.parameters())
    free = shutil.disk_usage(folder).free
    if free < 1.1 * needed:
        raise OSError(
            f"the checkpoint needs {needed / 1e9:.1f} GB in {folder.parent}, where {free / 1e9:.1f} GB are "
            "free: set TMPDIR to a folder on a larger disk"
        )
    tensors = {
        # Distinct values, since equal pages could be shared; uniform, since that is quick to draw.
        name: torch.empty(parameter.shape, dtype=torch.bfloat16).uniform_(-0.05, 0.05)
        for name, parameter in empty.named_parameters()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Seconds and peak memory to load a checkpoint, in fresh processes."
    add_source(command)
    command.add_argument("--peer", choices=["hf"], help="compare with Hugging Face's from_pretrained")
    command.add_argument("--milestone", metavar="mK", help="load with this milestone's tree instead of this one")
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="loads of each kind; medians are shown")
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    with checkpoint(args.model, args.shape) as model:
        if args.milestone is None:
            return run(model, command=command_line(args), peer=args.peer, rounds=args.rounds)
        with tempfile.TemporaryDirectory(prefix="folovllm-bench-") as tree:
            course = Course.load(working_tree(ROOT))
            write_tree(course.tree(course.get(args.milestone).number), Path(tree))
            return run(
                model, command=command_line(args), peer=args.peer, rounds=args.rounds, name=args.milestone, tree=tree
            )


def run(
    model: BenchModel,
    *,
    command: str,
    peer: str | None = None,
    rounds: int = 3,
    name: str = "folovllm",
    tree: str | None = None,
) -> Report:
    require_at_least(1, rounds=rounds)
    engines = ["folovllm", *([peer] if peer else [])]
    cases = [(engine, dtype) for engine in engines for dtype in CASES[engine]]
    results: dict[tuple[str, str], list[Row]] = {case: [] for case in cases}
    with progress_bar(rounds * len(cases)) as tick:
        for number in range(rounds):
            for case in cases:
                tick(f"round {number + 1}/{rounds}: {case[0]}, {case[1]}")
                results[case].append(load_once(model.path, *case, tree))
    rows = []
    for (engine, dtype), samples in results.items():
        weights = samples[0]["weight_bytes"]
        peak = statistics.median(sample["peak_bytes"] for sample in samples)
        rows.append(
            {
                "engine": name if engine == "folovllm" else engine,
                "checkpoint": samples[0]["checkpoint_dtype"],
                "dtype": dtype,
                "weights_gb": weights / 1e9,
                "load_s": statistics.median(sample["load_s"] for sample in samples),
                "first_token_s": statistics.median(sample["first_token_s"] for sample in samples),
                "peak_gb": peak / 1e9,
                "peak_over_weights": peak / weights,
            }
        )
    notes = [
        f"{medians(rounds, 'load')} of each kind in fresh processes, the file in the page cache, imports not counted.",
        "first_token: loading and one token after a prompt of 8, so that work put off while loading counts.",
        "peak: the largest resident set up to that token, less what the process had before loading.",
    ]
    return Report("load", f"Loading, {model.label}", command, COLUMNS, rows, notes)


def load_once(folder: str, engine: str, dtype: str, tree: str | None = None) -> Row:
    """One load in a process of its own, by the package in `tree` or by this one."""
    command = [sys.executable, "-P", str(Path(load_worker.__file__))]
    command += [engine, folder, dtype, str(torch.get_num_threads())]
    env = {**os.environ, "PYTHONPATH": tree or str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"loading with {engine} failed: {last}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row
