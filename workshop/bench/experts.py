"""Decode steps of a model with experts: how many experts are read, and what a step takes, by the number of sequences.

Of a random model of 8 layers with 32 experts, 4 a token, beside transformers' own on the same weights. What is measured
is the CPU time of one thread, so that it says something on a machine that others use, too.

vLLM: none
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from folovllm.bench.options import add_batch_sizes, add_common, add_number
from folovllm.bench.report import Line, Report, medians
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.llm import LLM
from folovllm.layers.moe import Experts
from workshop.bench.contestant import PEERS, PeerSetup, add_peers, check_peers
from workshop.bench.decode import DecodingBatch
from workshop.bench.timer import counted

TIMES = ["step_ms", "eager_step_ms", "hf_step_ms"]
COLUMNS = ["batch", "experts", "expected", "experts_mb"]
CONFIG = Qwen3MoeConfig(
    vocab_size=4096, hidden_size=512, intermediate_size=1024, moe_intermediate_size=256, num_hidden_layers=8,
    num_attention_heads=8, num_key_value_heads=4, num_experts=32, num_experts_per_tok=4,
    norm_topk_prob=True, max_position_embeddings=1024, initializer_range=0.05, eos_token_id=None,
)  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Decode steps of a model with 32 experts a layer: experts read, and CPU time of one thread."
    add_batch_sizes(command, 1, 2, 4, 8, 16, 32, 64)
    add_number(command, "--context", default=32, help="prompt tokens of each")
    add_number(command, "--steps", default=6, help="measured steps of a round")
    add_peers(command)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    """A round has one batch of each size; ours and theirs take turns."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    torch.manual_seed(args.seed)
    theirs = Qwen3MoeForCausalLM(CONFIG).eval()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        tick = stack.enter_context(progress_bar(args.rounds * len(args.batch_sizes)))
        theirs.save_pretrained(folder)
        options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "skip_tokenizer_init": True}
        ours, eager = (
            LLM(folder, max_model_len=128, enforce_eager=one_by_one, **options).engine for one_by_one in (False, True)
        )
        model, most = BenchModel("experts", folder, "auto"), max(args.batch_sizes)
        setup = PeerSetup(model, "float32", "cpu", 128, most, vars(args), stack)
        peers = {name: peer for name in check_peers(args.peers) for peer in PEERS[name](setup)}
        found: dict[int, list[tuple[float, ...]]] = {batch: [] for batch in args.batch_sizes}
        for number in range(args.rounds):
            for batch in args.batch_sizes:
                tick(f"round {number + 1}, batch {batch}")
                steps = (_ours(engine, batch, args) for engine in (ours, eager))
                of_peers = (_of_process(peer, batch, args) for peer in peers.values())
                found[batch].append((_count(eager, batch, args), *steps, _theirs(theirs, batch, args), *of_peers))
    notes = [
        f"{medians(args.rounds, 'round')} of {counted(args.steps, 'step')}; CPU time of one thread, float32.",
        "experts: read in a layer by a step, counted; expected: at random; experts_mb: those of all layers.",
        "eager_step_ms: ours, layer by layer and expert by expert; ratio: transformers' step over ours.",
    ]
    notes += [f"{name}: {peer.version}." for name, peer in peers.items()]
    times = [*TIMES, *(f"{name}_step_ms" for name in peers)]
    lines = [_line(batch, rounds, times) for batch, rounds in found.items()]
    columns = [*COLUMNS, *times, "ratio"]
    return Report.of(args, "Decode steps of a model with experts, random weights", columns, lines, notes)


def _line(batch: int, rounds: list[tuple[float, ...]], times: list[str]) -> Line:
    experts, ours, _, theirs, *_ = (statistics.median(values) for values in zip(*rounds, strict=True))
    share = CONFIG.num_experts_per_tok / CONFIG.num_experts
    each = 3 * CONFIG.hidden_size * CONFIG.moe_intermediate_size * 4 / 1e6
    facts = {
        "batch": batch, "experts": experts, "expected": CONFIG.num_experts * (1 - (1 - share) ** batch),
        "experts_mb": experts * CONFIG.num_hidden_layers * each, "ratio": theirs / ours,
    }  # fmt: skip
    samples = {name: [1e3 * row[place] for row in rounds] for place, name in enumerate(times, 1)}
    return facts, samples


def _cpu_seconds(step: Callable[[], Any], count: int) -> float:
    """The median of so many."""
    gc.collect()
    taken = []
    for _ in range(count):
        began = time.process_time()
        step()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


@contextlib.contextmanager
def _watched(engine: LLMEngine) -> Iterator[list[int]]:
    """How many experts each layer reads in each step."""
    read: list[int] = []
    layers = [module for module in engine.runner.model.modules() if isinstance(module, Experts)]
    hooks = [
        layer.register_forward_hook(lambda _, inputs, output: read.append(len(inputs[1].experts.unique())))
        for layer in layers
    ]
    yield read
    for hook in hooks:
        hook.remove()


def _ours(engine: LLMEngine, batch: int, args: argparse.Namespace) -> float:
    """CPU seconds of a step."""
    sequences = DecodingBatch(engine, batch, args.context, CONFIG.vocab_size, args.seed)
    seconds = _cpu_seconds(sequences.step, args.steps)
    sequences.end()
    return seconds


def _of_process(peer: Any, batch: int, args: argparse.Namespace) -> float:
    """CPU seconds of a step in another process: of two runs, the one with so many steps more takes so much longer."""
    prompts, more = random_prompts([args.context] * batch, CONFIG.vocab_size, args.seed + batch), 4 * args.steps
    marks = [_seconds_of(peer.worker.process.pid)]
    for count in (2, 2 + more):
        peer.run(prompts, [count] * batch)
        marks.append(_seconds_of(peer.worker.process.pid))
    return (marks[2] - 2 * marks[1] + marks[0]) / more


def _seconds_of(process: int) -> float:
    """Of all its threads."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text("utf-8").split()[0]) for thread in threads) / 1e9


def _count(eager: LLMEngine, batch: int, args: argparse.Namespace) -> float:
    """Experts that a step reads in a layer."""
    sequences = DecodingBatch(eager, batch, args.context, CONFIG.vocab_size, args.seed)
    with _watched(eager) as read:
        for _ in range(args.steps):
            sequences.step()
    sequences.end()
    return statistics.fmean(read)


@torch.inference_mode()
def _theirs(model: Any, batch: int, args: argparse.Namespace) -> float:
    prompts = torch.tensor(random_prompts([args.context] * batch, CONFIG.vocab_size, args.seed + batch))
    state = model(prompts, use_cache=True)

    def step() -> None:
        nonlocal state
        tokens = state.logits[:, -1:].argmax(-1)
        state = model(tokens, past_key_values=state.past_key_values, use_cache=True)

    for _ in range(2):
        step()
    return _cpu_seconds(step, args.steps)
