"""Workloads that others publish figures for, drawn number by number as they draw them.

    nano-vllm     256 sequences all at once; prompts and outputs of 100 to 1,024 tokens, uniform, from Python's seed 0:
                  first every prompt (its length, then its token ids), then every output's length. Temperature 0.6, no
                  end of text, at most 4,096 tokens: 142,827 tokens in, 133,966 out. mini-sglang measures the same.

What it costs at least is known before it runs; see roofline.py.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from folovllm.bench.peers import PEERS, Contestant, MixedContestant, PeerSetup, require_peers
from folovllm.bench.report import Report, Row
from folovllm.bench.roofline import ModelCost, Probe, RunCost, exceeds_caches
from folovllm.bench.workload import BenchModel, progress_bar, require_at_least
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.llm import LLM
from folovllm.sampling_params import SamplingParams

COLUMNS = [
    "engine", "dtype", "requests", "prompt_tokens", "output_tokens", "seconds", "output_tokens_per_s",
    "total_tokens_per_s", "speedup", "steps", "running_seqs", "kv_read_gb", "weights_read_gb", "prefill_tflop",
    "floor_s", "share",
]  # fmt: skip
WARM_UP = 8  # requests, with as many tokens of output each


@dataclass(frozen=True)
class Preset:
    """A workload by its numbers."""

    num_requests: int
    shortest: int
    longest_prompt: int
    longest_output: int
    temperature: float
    max_model_len: int
    top_id: int
    """Token ids are drawn from 0 to this, both included."""
    seed: int = 0

    def draw(self) -> tuple[list[list[int]], list[int]]:
        """Prompts, and how many tokens each is to be answered with."""
        rng = random.Random(self.seed)
        low, high = min(self.shortest, self.longest_prompt), self.longest_prompt
        count = self.num_requests
        prompts = [[rng.randint(0, self.top_id) for _ in range(rng.randint(low, high))] for _ in range(count)]
        low, high = min(self.shortest, self.longest_output), self.longest_output
        return prompts, [rng.randint(low, high) for _ in range(count)]


PRESETS = {
    "nano-vllm": Preset(
        num_requests=256,
        shortest=100,
        longest_prompt=1024,
        longest_output=1024,
        temperature=0.6,
        max_model_len=4096,
        top_id=10000,
    )
}


def run(
    model: BenchModel,
    preset: Preset,
    *,
    command: str,
    dtype: str,
    device: str | None = None,
    peers: Sequence[str] = (),
    peer_python: str | None = None,
    rounds: int = 3,
) -> Report:
    """Rounds of ours and of each peer in turn. The first round's token ids are the drawn ones."""
    require_at_least(1, num_requests=preset.num_requests, input_len=preset.longest_prompt, rounds=rounds)
    require_at_least(2, output_len=preset.longest_output)
    require_peers(peers)
    prompts, outputs = preset.draw()
    longest = max(len(prompt) + output for prompt, output in zip(prompts, outputs, strict=True))
    max_model_len = check_room(model, preset, longest)
    setup = PeerSetup(model, dtype, device, longest, preset.num_requests, 1, peer_python)
    with setup.cleanup, progress_bar(1 + len(peers) + (rounds + 1) * (1 + len(peers)) + 1) as tick:
        tick("loading folovllm")
        engine = LLM(
            model.path,
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            load_format=model.load_format,
            skip_tokenizer_init=True,
        ).engine
        others: list[Contestant] = []
        for peer in peers:
            tick(f"loading {peer}")
            others += PEERS[peer](setup)
        require_mixed_lengths(others)
        probe = Probe(engine.device, engine.dtype)
        ours, theirs = _rounds(engine, others, probe, preset, prompts, outputs, rounds, tick)
    token_cost = ModelCost.of_engine(engine)
    cost = RunCost.of(token_cost, [len(prompt) for prompt in prompts], outputs)
    floor = cost.floor_seconds(probe.bandwidth, probe.flops_per_s)
    from_memory = exceeds_caches(token_cost, engine.device)
    common = {"dtype": dtype, "requests": len(prompts)}
    common |= {"prompt_tokens": sum(map(len, prompts)), "output_tokens": sum(outputs)}
    facts = {
        "kv_read_gb": cost.kv_bytes / 1e9,
        "weights_read_gb": cost.weight_bytes / 1e9,
        "prefill_tflop": cost.prefill_flops / 1e12,
        "floor_s": floor,
        "from_memory": from_memory,
    }
    base = statistics.median(seconds for seconds, _, _ in ours)
    rows = [_row("folovllm", common, facts, base, None, max(ours)[1:])]
    for contestant, seconds_of in zip(others, theirs, strict=True):
        seconds = statistics.median(seconds_of)
        rows.append(_row(contestant.name, common, facts, seconds, seconds / base, (None, None)))
    notes = [
        f"All requests at once, drawn from seed {preset.seed}; medians of {rounds} rounds after a warm-up, in turn. "
        f"Temperature {preset.temperature:g}; no request ends before its length; max_model_len {max_model_len}.",
        "floor: the K and V of every decode step and the weights of every step at the measured bandwidth, then the "
        "prompts' operations at the measured matmul rate; share: floor over seconds.",
        probe.describe(),
    ]
    if others:
        notes.append("Peers pick the likeliest token instead of drawing one. speedup: their seconds over ours.")
    if not from_memory:
        notes.append("The weights are small enough to stay in caches: no share.")
    details = {
        "kv_token_reads": cost.kv_token_reads,
        "kv_token_bytes": cost.kv_bytes // max(cost.kv_token_reads, 1),
        "floor_steps": cost.steps,
        "prefill_flops": cost.prefill_flops,
        "bandwidth_bytes_per_s": probe.bandwidth,
        "matmul_flops_per_s": probe.flops_per_s,
        "seconds_of_rounds": [seconds for seconds, _, _ in ours],
        "prompt_lengths": [len(prompt) for prompt in prompts],
        "output_lengths": outputs,
    }
    return Report("throughput", f"Throughput, {model.label}", command, COLUMNS, rows, notes, details=details)


def check_room(model: BenchModel, preset: Preset, longest: int) -> int:
    """The preset's max_model_len, or less for a model that was made for less."""
    from folovllm.config import ModelConfig
    from folovllm.model_loader import load_hf_config, resolve_max_model_len

    config = load_hf_config(ModelConfig(model.path, load_format=model.load_format, skip_tokenizer_init=True))
    room = min(preset.max_model_len, resolve_max_model_len(config, None))
    if longest > room:
        raise ValueError(
            f"input_len and output_len must leave the longest request at most {room} tokens, got {longest}: lower them"
        )
    return room


def require_mixed_lengths(contestants: Sequence[Contestant]) -> None:
    for contestant in contestants:
        if not isinstance(contestant, MixedContestant):
            raise ValueError(
                f"peer must take requests of different lengths for a preset, and {contestant.name!r} does not: choose "
                "another, such as hf"
            )


def _rounds(
    engine: LLMEngine,
    others: list[Contestant],
    probe: Probe,
    preset: Preset,
    prompts: list[list[int]],
    outputs: list[int],
    rounds: int,
    tick: Any,
) -> tuple[list[tuple[float, int, int]], list[list[float]]]:
    """Ours: what generate() says of each round; theirs: each peer's seconds."""
    ours: list[tuple[float, int, int]] = []
    theirs: list[list[float]] = [[] for _ in others]
    for number in range(rounds + 1):
        label = f"round {number}/{rounds}" if number else "warm-up"
        lengths = outputs if number else [min(WARM_UP, length) for length in outputs[:WARM_UP]]
        # Other ids in each round, so that no cache of prefixes remembers them from the one before.
        given = shifted(prompts[: len(lengths)], (number - 1) % (rounds + 1), engine.runner.vocab_size)
        probe.measure(warm_up=not number)
        tick(f"{label}: folovllm")
        gc.collect()
        result = generate(engine, given, lengths, preset.temperature, f"round{number}")
        if number:
            ours.append(result)
        for contestant, seconds in zip(others, theirs, strict=True):
            tick(f"{label}: {contestant.name}")
            gc.collect()
            assert isinstance(contestant, MixedContestant)  # require_mixed_lengths has seen to it
            took = contestant.run_mixed(given, lengths).seconds
            if number:
                seconds.append(took)
    return ours, theirs


def shifted(prompts: list[list[int]], by: int, vocab_size: int) -> list[list[int]]:
    return [[(token + by) % vocab_size for token in prompt] for prompt in prompts]


def generate(
    engine: LLMEngine, prompts: list[list[int]], lengths: list[int], temperature: float, name: str
) -> tuple[float, int, int]:
    """Seconds, steps, the most sequences that gained a token in one.

    Raises:
        RuntimeError: a request has not all of its tokens.
    """
    done: dict[str, int] = {}
    steps = most = 0
    start = time.perf_counter()
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        params = SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True, detokenize=False)
        engine.add_request(f"{name}-{number}", prompt, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        for output in outputs:
            if output.finished:
                done[output.request_id] = len(output.outputs[0].token_ids)
        steps += 1
        most = max(most, len(outputs))
    seconds = time.perf_counter() - start
    if [done.get(f"{name}-{number}") for number in range(len(lengths))] != lengths:
        raise RuntimeError("not every request got the tokens it asked for")
    return seconds, steps, most


def _row(
    name: str,
    common: Row,
    facts: Row,
    seconds: float,
    speedup: float | None,
    counts: tuple[int | None, int | None],
) -> Row:
    steps, most = counts
    row = {"engine": name, **common, **facts, "seconds": seconds, "speedup": speedup}
    row |= {
        "output_tokens_per_s": common["output_tokens"] / seconds,
        "total_tokens_per_s": (common["prompt_tokens"] + common["output_tokens"]) / seconds,
        "steps": steps,
        "running_seqs": most,
        "share": facts["floor_s"] / seconds if facts["from_memory"] else None,
    }
    return {column: row[column] for column in COLUMNS}
