"""One engine, and what a user of it waits for: the first token, a step with filters, answers while prompts keep coming.

    first      one prompt alone: where its step's time goes, on the host before the first kernel, in kernels, between
               them, behind them
    filters    decode steps with a temperature alone, and with Qwen3's own settings beside it
    beside     steps of one long decode, alone, and with a short prompt in each
    arrivals   so many prompts a second: the time to the first token, and the gaps between tokens

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.runs import make_engine
from folovllm.bench.shapes import SHAPES
from folovllm.bench.workload import bench_model, random_prompts, vocab_size
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams
from workshop.bench.decode import DecodingBatch
from workshop.bench.roofline import synchronize

Row = dict[str, Any]
# As Qwen3's generation_config.json has them.
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top-k 20, top-p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
}
SPAN, ROUNDS = "the first token", 7


def first(engine: LLMEngine, vocab: int, args: argparse.Namespace) -> Iterator[Row]:
    for length in args.prompts:
        prompts = random_prompts([length] * (ROUNDS + 1), vocab, seed=length)
        times = [_first_token(engine, prompt, f"{length}-{place}") for place, prompt in enumerate(prompts[:-1])]
        on_gpu = engine.device.type == "cuda"
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=kinds) as found:
            _first_token(engine, prompts[-1], f"{length}-profiled")
            synchronize(engine.device)
        yield {"prompt": length, "ms": 1e3 * statistics.median(times), **_time_line(found.events(), on_gpu)}


def _first_token(engine: LLMEngine, prompt: list[int], name: str) -> float:
    """Seconds; the request is then run to its end."""
    start = time.perf_counter()
    with record_function(SPAN):
        engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        while not engine.step():
            pass
    seconds = time.perf_counter() - start
    while engine.has_unfinished_requests():
        engine.step()
    return seconds


def _time_line(events: Sequence[Any], on_gpu: bool) -> Row:
    """Of the profiled one, in microseconds: before its first kernel, in kernels, between them, and behind the last."""
    (span,) = (each.time_range for each in events if each.name == SPAN and each.device_type == DeviceType.CPU)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    runs = [
        each.time_range for each in events
        if each.device_type == wanted and each.name != SPAN and span.start <= each.time_range.start < span.end
    ]  # fmt: skip
    begin, end = min(run.start for run in runs), max(run.end for run in runs)
    busy = sum(run.end - run.start for run in runs)
    parts = {"before_us": begin - span.start, "kernels_us": busy, "between_us": end - begin - busy}
    return {"kernels": len(runs), **parts, "behind_us": span.end - end}


def filters(engine: LLMEngine, vocab: int, args: argparse.Namespace) -> Iterator[Row]:
    for batch in args.sizes:
        plain = None
        for name, sampling in SETTINGS.items():
            sequences = DecodingBatch(engine, batch, args.context, vocab, **sampling)
            ms = 1e3 * statistics.median(sequences.step() for _ in range(args.steps))
            sequences.end()
            plain = ms if plain is None else plain
            yield {"batch": batch, "sampling": name, "step_ms": ms, "more": ms / plain - 1}


def beside(engine: LLMEngine, vocab: int, args: argparse.Namespace) -> Iterator[Row]:
    sequences = DecodingBatch(engine, 1, args.long, vocab)
    alone = statistics.median(sequences.step() for _ in range(args.steps))
    seconds = list[float]()
    for number, prompt in enumerate(random_prompts([32] * args.steps, vocab, seed="beside")):
        engine.add_request(f"beside-{number}", prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        seconds.append(sequences.step())
    sequences.end()
    yield {"long": args.long, "alone_ms": 1e3 * alone, "beside_ms": 1e3 * statistics.median(seconds)}


def arrivals(engine: LLMEngine, vocab: int, args: argparse.Namespace) -> Iterator[Row]:
    for rate in args.rates:
        count = max(2, round(rate * args.seconds))
        coming = list(enumerate(Arrivals(request_rate=rate).times(count, seed=1)))
        prompts = random_prompts([args.input_len] * count, vocab, seed=f"arrivals {rate}")
        params = SamplingParams(temperature=0.6, max_tokens=args.output_len, ignore_eos=True)
        due, ttft, gaps = dict(coming), list[float](), list[float]()
        last: dict[int, float] = {}
        begin, steps = time.perf_counter(), 0
        while coming or engine.has_unfinished_requests():
            while coming and coming[0][1] <= time.perf_counter() - begin:
                number, _ = coming.pop(0)
                engine.add_request(f"arrival-{rate}-{number}", prompts[number], params)
            if not engine.has_unfinished_requests():
                time.sleep(max(0.0, coming[0][1] - (time.perf_counter() - begin)))
                continue
            outputs, steps = engine.step(), steps + 1
            now = time.perf_counter() - begin
            for output in outputs:
                number = int(output.request_id.rpartition("-")[2])
                (gaps if number in last else ttft).append(now - last.get(number, due[number]))
                last[number] = now
        seconds = time.perf_counter() - begin
        yield {
            "rate": rate, "requests": count, "steps": steps, "tokens_per_s": count * args.output_len / seconds,
            **{f"ttft_ms_p{part}": 1e3 * _share(ttft, part) for part in (50, 99)},
            **{f"gap_ms_p{part}": 1e3 * _share(gaps, part) for part in (50, 99)},
        }  # fmt: skip


def _share(times: Sequence[float], percent: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 128, 512], help="first: tokens")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 256], help="filters: sequences")
    parser.add_argument("--context", type=int, default=256, help="filters: tokens of each")
    parser.add_argument("--steps", type=int, default=24, help="filters: of each kind")
    parser.add_argument("--long", type=int, default=32_768, help="beside: tokens")
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0], help="arrivals: prompts a second")
    parser.add_argument("--seconds", type=float, default=6.0, help="arrivals: for so long")
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    most = max(args.sizes)
    longest = max(args.context + 2 * args.steps + most + 64, args.input_len + args.output_len, *args.prompts, 32) + 16
    long = args.long + 3 * args.steps + 80
    found: Row = {}
    with bench_model(None, args.shape) as model, torch.inference_mode():
        engine = make_engine(
            model, args.dtype, args.device, max_model_len=max(longest, long), max_num_seqs=most,
            num_kv_blocks=most * -(-longest // 16) + -(-long // 16) + 1, enable_prefix_caching=False,
        )  # fmt: skip
        vocab = vocab_size(model)
        for kind in (first, filters, beside, arrivals):
            found[kind.__name__] = []
            for row in kind(engine, vocab, args):
                found[kind.__name__].append(row)
                args.json.write_text(json.dumps(found), encoding="utf-8")  # what comes later may be cut off
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
