"""How long a checkpoint takes to load, and how much memory at the worst moment.

Each case loads in a fresh process, which is this file as a script: a process that has once used memory tells nothing
about what the next load would need. Imports come first and are not counted: they cost the same whatever is loaded. The
checkpoint is in the page cache: the loader is measured, no disk.

vLLM: benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

COLUMNS = ["engine", "checkpoint", "dtype", "weights_gb", "load_s", "first_token_s", "peak_gb", "peak_over_weights"]
DTYPES = ("bfloat16", "float32")
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


@contextmanager
def checkpoint(model: str | None, shape: str) -> Iterator[tuple[str, str]]:
    """A label and a real folder, or one with random bfloat16 weights of `shape`, there as long as the block runs."""
    if model is not None:
        yield Path(model).name, model
        return
    from safetensors.torch import save_file

    from folovllm.bench.workload import shape_config

    with tempfile.TemporaryDirectory(prefix="folovllm-bench-") as folder:
        config = shape_config(shape)
        empty = empty_model(config, torch.bfloat16)
        needed, free = sum(parameter.nbytes for parameter in empty.parameters()), shutil.disk_usage(folder).free
        if free < 1.1 * needed:
            raise OSError(
                f"the checkpoint needs {needed / 1e9:.1f} GB in {Path(folder).parent}, where {free / 1e9:.1f} GB are "
                "free: set TMPDIR to a folder on a larger disk"
            )
        tensors = {
            # Distinct values, since equal pages could be shared; uniform, since that is quick to draw.
            name: torch.empty(parameter.shape, dtype=torch.bfloat16).uniform_(-0.05, 0.05)
            for name, parameter in empty.named_parameters()
        }
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        yield f"{shape} shape", folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    from folovllm.bench.options import add_output, add_rounds, add_source

    command.description = "Seconds and peak memory to load a checkpoint, in fresh processes."
    add_source(command)
    command.add_argument("--peer", choices=["hf"], help="compare with Hugging Face's from_pretrained")
    command.add_argument("--milestone", metavar="mK", help="load with this milestone's tree instead of this one")
    add_rounds(command)
    add_output(command)


def run(args: argparse.Namespace) -> Any:
    from folovllm.bench.contestant import take_turns
    from folovllm.bench.report import Report, medians
    from folovllm.bench.workload import progress_bar
    from milestones.site.source import ROOT
    from workshop.bench.peers.more import milestone_tree

    with ExitStack() as stack:
        label, folder = stack.enter_context(checkpoint(args.model, args.shape))
        tree = stack.enter_context(milestone_tree(args.milestone)) if args.milestone else ROOT
        name = args.milestone or "folovllm"
        cases = [(engine, dtype) for engine in (name, *([args.peer] if args.peer else [])) for dtype in DTYPES]
        plays = [
            (f"{engine}, {dtype}", partial(load_once, folder, "hf" if engine == "hf" else "folovllm", dtype, tree))
            for engine, dtype in cases
        ]
        tick = stack.enter_context(progress_bar((args.rounds + 1) * len(plays)))
        found = take_turns(plays, args.rounds, tick)
    lines = []
    for (engine, dtype), loads in zip(cases, found, strict=True):
        weights = loads[0].pop("weight_bytes")
        facts = {"engine": engine, "checkpoint": loads[0].pop("checkpoint_dtype"), "dtype": dtype}
        samples = {key: [load[key] for load in loads] for key in ("load_s", "first_token_s")}
        samples["peak_gb"] = [load["peak_bytes"] / 1e9 for load in loads]
        samples["peak_over_weights"] = [load["peak_bytes"] / weights for load in loads]
        lines.append((facts | {"weights_gb": weights / 1e9}, samples))
    notes = [
        f"{medians(args.rounds, 'load')} of each kind in fresh processes, the file in the page cache, imports not "
        "counted.",
        "first_token: loading and one token after a prompt of 8, so that work put off while loading counts.",
        "peak: the largest resident set up to that token, less what the process had before loading.",
    ]
    return Report.of(args, f"Loading, {label}", COLUMNS, lines, notes)


def load_once(folder: str, engine: str, dtype: str, tree: Path, number: int) -> dict[str, Any]:
    """One load in a process of its own, by the package in `tree`."""
    command = [sys.executable, "-P", __file__, engine, folder, dtype, str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tree)})
    if done.returncode:
        raise ValueError(f"loading with {engine} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# In the process that loads.


def empty_model(config: Any, dtype: torch.dtype) -> Any:
    """Hugging Face's model of this configuration on the meta device: every shape, no memory."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def main(engine: str, folder: str, dtype: str, threads: str) -> dict[str, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    from folovllm import LLM, SamplingParams

    torch.set_num_threads(int(threads))
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder)
    checkpoint_dtype = str(config.dtype).removeprefix("torch.")
    # This imports the modelling code. It also writes the dtype into the configuration.
    weight_bytes = sum(parameter.nbytes for parameter in empty_model(config, getattr(torch, dtype)).parameters())
    before = _memory("VmRSS")
    start = time.perf_counter()
    if engine == "folovllm":
        llm_engine = LLM(folder, dtype=dtype, skip_tokenizer_init=True).engine
        loaded = time.perf_counter()
        llm_engine.add_request("first", PROMPT, SamplingParams(temperature=0, max_tokens=1, detokenize=False))
        while llm_engine.has_unfinished_requests():
            llm_engine.step()
    else:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        loaded = time.perf_counter()
        greedy = GenerationConfig(do_sample=False, max_new_tokens=1, pad_token_id=0)
        ids = torch.tensor([PROMPT])
        model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
    return {
        "load_s": loaded - start,
        "first_token_s": time.perf_counter() - start,
        "peak_bytes": _memory("VmHWM") - before,
        "weight_bytes": weight_bytes,
        "checkpoint_dtype": checkpoint_dtype,
    }


def _memory(name: str) -> int:
    """Bytes of /proc/self/status: what the process has in memory (VmRSS), and had at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
