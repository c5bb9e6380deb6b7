"""An engine in this process under load, asked as by a program that embeds it; with presets, and the time in the queue.

`folovllm bench serve` asks a server, and so does this one with --base-url.

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import time
from dataclasses import fields
from typing import Any

from folovllm.bench import serve
from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import RequestTimes
from folovllm.bench.options import add_common, add_model, source
from folovllm.bench.report import Report
from folovllm.bench.requests import CacheCounters, LoadRequest
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import BenchModel
from folovllm.engine.async_llm import AsyncLLM
from folovllm.engine.builder.defaults import LAYERS
from folovllm.entrypoints.cli.parser import add_engine_arguments, needing
from folovllm.sampling_params import SamplingParams
from workshop.bench.presets import PRESETS, preset_of

ENGINE = [field.name for config in LAYERS for field in fields(config)]
# Said of an engine in this process, with what they are where they are not given.
HERE = {"model": None, "dtype": "auto", "device": None, "load_format": None}


class InProcessServer:
    """An AsyncLLM. Raises ValueError: as AsyncLLM."""

    def __init__(self, model: BenchModel, options: dict[str, Any]) -> None:
        self.llm = AsyncLLM.from_engine(make_engine(model, **options))
        self.label = f"{model.label}, in this process"
        self._names = 0

    async def start(self) -> None:
        """It runs from its making on."""

    async def stop(self) -> None:
        await self.llm.shutdown()

    def usable(self, ids: list[int]) -> list[int]:
        vocab_size = self.llm.engine.input_processor.vocab_size
        return [each % vocab_size for each in ids]

    async def counters(self) -> CacheCounters:
        stats = self.llm.stats()
        return CacheCounters(stats.prefix_cache_queries, stats.prefix_cache_hits, stats.preemptions)

    async def ask(self, request: LoadRequest) -> RequestTimes:
        self._names += 1
        has_text = self.llm.engine.tokenizer is not None
        params = SamplingParams(**request.sampling, max_tokens=request.max_tokens, ignore_eos=True, detokenize=has_text)
        times, began = RequestTimes(), time.perf_counter()
        try:
            async for output in self.llm.generate(request.prompt, params, f"load-{self._names}"):
                now, num_tokens = time.perf_counter(), len(output.outputs[0].token_ids)
                if num_tokens > times.num_tokens:
                    times.arrivals.append(now - began)
                    times.num_tokens = num_tokens
                if output.metrics is not None and output.metrics.first_scheduled_time is not None:
                    times.queue = output.metrics.first_scheduled_time - output.metrics.arrival_time
        except (ValueError, RuntimeError) as error:
            times.problem = f"{type(error).__name__}: {error}"
        times.end(began)
        return times


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Those of `bench serve` and of an engine, and --preset: a workload by its name, at the preset's own rate."""
    command.description = "An engine in this process under load: TTFT, TPOT, ITL and goodput, and presets."
    command.add_argument("--base-url", metavar="URL", help="ask a server instead (default: an engine in this process)")
    command.add_argument("--api-key", metavar="KEY", help="the key that the server asks for (default: none)")
    add_model(command)
    serve.add_requests(command)
    text = "a workload by its name; --num-requests, --input-len and --output-len (of the longest) override its numbers"
    command.add_argument("--preset", choices=list(PRESETS), help=text)
    add_common(command, rounds=1)
    add_engine_arguments(command)


def run(args: argparse.Namespace) -> Report:
    load = _load(args)
    given = {name: getattr(args, name) for name in ENGINE if name in args}
    if args.base_url is not None:
        looks = [name for name in ("trace", "nvtx") if getattr(args, name)]
        engines = [name for name, value in given.items() if name != "seed" and value != HERE.get(name, HERE)]
        for name in looks + engines:
            raise ValueError(f"{name} must not be given with base_url: the engine is the server's at {args.base_url}")
        with needing("serve", "`bench serve-load --base-url`"):
            from folovllm.bench.http_client import HttpServer
        args.neighbours = None
        return serve.measured(args, HttpServer(args.base_url, args.api_key), *load)
    if args.dataset_path is not None and args.model is None:
        raise ValueError("dataset_path must come with a model: its texts need a tokenizer, and a shape has none")
    with source(args) as model:
        options = {name: value for name, value in given.items() if name not in ("model", "load_format")}
        options |= {"dtype": args.dtype, "skip_tokenizer_init": args.model is None}
        return serve.measured(args, InProcessServer(model, options), *load)


def _load(args: argparse.Namespace) -> tuple[Any, ...]:
    """Requests, what they are in words, and of a preset its arrivals."""
    if args.preset is None:
        return serve.requests_of(args)
    preset = preset_of(args.preset, args)
    prompts, outputs = preset.draw()
    requests = [LoadRequest(prompt, length, preset.sampling) for prompt, length in zip(prompts, outputs, strict=True)]
    what = f"{len(requests)} requests, {sum(map(len, prompts)):,} tokens in, {sum(outputs):,} out"
    return requests, what, [Arrivals(preset.request_rate, preset.burstiness)]
