"""What the server costs: one load, given to one engine without a server and then over HTTP, in turn.

    offline      add_request for each, then step() until all are done: no text is made, as in `bench throughput`
    with text    the same, and the engine makes text of the tokens
    whole        over HTTP, each answer in one piece
    streamed     over HTTP, each answer as server-sent events

There are two engines of one kind: one here, and one in a process of its own, as `serve` has it. One of them works at a
time, so what differs is what stands around it. The clients are another process.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from folovllm.bench.options import add_model, add_output, add_rounds, command_line
from folovllm.bench.pipe import Pipe
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import BenchModel, bench_model, dtype_of, progress_bar, random_prompts, require_at_least
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.engine_client import EngineClient
from folovllm.sampling_params import SamplingParams
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient

COLUMNS = ["way", "seconds", "output_tokens_per_s", "of_offline", "events"]
Ask = Callable[[list[list[int]]], tuple[float, int]]
"""Prompts in; (seconds, server-sent events) out."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "One load, given to the engine without a server and over HTTP in turn: what the server costs."
    add_model(command)
    command.add_argument("--num-requests", "--num-prompts", type=int, default=64, metavar="N", help="in each round")
    command.add_argument("--input-len", type=int, default=64, metavar="N", help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, default=64, metavar="N", help="new tokens of a request")
    command.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="most sequences in a step")
    command.add_argument("--num-kv-blocks", type=int, metavar="N", help="blocks of the KV cache")
    add_rounds(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    from folovllm.serving.command import require_packages

    require_packages()
    names = ("device", "num_requests", "input_len", "output_len", "max_num_seqs", "rounds")
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    options["options"] = {} if args.num_kv_blocks is None else {"num_kv_blocks": args.num_kv_blocks}
    with bench_model(args.model, args.shape) as model:
        dtype = dtype_of(model, args.dtype, args.device)
        return run(model, command=command_line(args), dtype=dtype, **options)


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    device: str | None = None,
    num_requests: int = 64,
    input_len: int = 64,
    output_len: int = 64,
    max_num_seqs: int = 64,
    rounds: int = 3,
    options: dict[str, Any] | None = None,
) -> Report:
    """Raises ValueError: a wrong number. RuntimeError: the server refused the load."""
    require_at_least(1, num_requests=num_requests, input_len=input_len, output_len=output_len, rounds=rounds)
    with ExitStack() as stack:
        with progress_bar(1) as tick:
            tick("loading")
            given: dict[str, Any] = {
                "dtype": dtype,
                "device": device,
                "max_model_len": input_len + output_len,
                "max_num_seqs": max_num_seqs,
                "load_format": model.load_format,
                "skip_tokenizer_init": model.load_format == "dummy",
                "enable_prefix_caching": False,
                **(options or {}),
            }
            engine = LLMEngine(config_for_llm(model.path, **given))
            served = MPClient(EngineProcess(model.path, **given))
        address = stack.enter_context(serve_in_thread(served))
        client = stack.enter_context(
            Pipe("the client", [sys.executable, "-m", "workshop.bench.serve_client"], env=dict(os.environ))
        )
        ways: dict[str, Ask] = {"offline": lambda prompts: _offline(engine, prompts, output_len, text=False)}
        if engine.tokenizer is not None:
            ways["offline, with text"] = lambda prompts: _offline(engine, prompts, output_len, text=True)
        ways["HTTP, whole"] = lambda prompts: _over_http(client, address, prompts, output_len, stream=False)
        ways["HTTP, streamed"] = lambda prompts: _over_http(client, address, prompts, output_len, stream=True)
        found = _take_turns(ways, rounds, num_requests, input_len, engine.runner.vocab_size)
    total = num_requests * output_len
    rows: list[Row] = []
    for way, results in found.items():
        seconds = statistics.median(seconds for seconds, _ in results)
        events = statistics.median(events for _, events in results)
        share = statistics.median(one / other for (one, _), (other, _) in zip(found["offline"], results, strict=True))
        rows.append({"way": way, "seconds": seconds, "output_tokens_per_s": total / seconds})
        rows[-1] |= {"of_offline": None if way == "offline" else share, "events": round(events) or None}
    notes = [
        f"{medians(rounds, 'round')} after a warm-up, in turn. {num_requests} requests, all sent at once, at most "
        f"{max_num_seqs} in a step; {input_len} tokens in, {output_len} out.",
        "of offline: this row's tokens per second over the first row's, in the same round.",
        "events: what came of the streams. Fewer than tokens: several steps' tokens in one.",
    ]
    return Report("serve-throughput", f"What the server costs, {model.label}, {dtype}", command, COLUMNS, rows, notes)


@contextmanager
def serve_in_thread(llm: EngineClient) -> Iterator[str]:
    """A server around the engine, in a thread of this process, on a port that is free: its address."""
    from folovllm.serving.openai.app import ServerOptions, make_app
    from folovllm.serving.openai.launch import listen, make_server

    app = make_app(llm, ServerOptions(llm.engine.config.model_config.model))
    with listen("127.0.0.1", 0) as listener, make_server(app).in_thread(listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _take_turns(
    ways: dict[str, Ask], rounds: int, num_requests: int, input_len: int, vocab: int
) -> dict[str, list[tuple[float, int]]]:
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
    with progress_bar((rounds + 1) * len(ways)) as tick:
        for number in range(rounds + 1):
            prompts = random_prompts(num_requests, input_len, vocab, seed=number)
            for way, ask in ways.items():
                tick(f"round {number}/{rounds}: {way}" if number else f"warm-up: {way}")
                gc.collect()
                result = ask(prompts)
                if number:
                    found[way].append(result)
    return found


def _offline(engine: LLMEngine, prompts: list[list[int]], output_len: int, *, text: bool) -> tuple[float, int]:
    began = time.perf_counter()
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=text)
        engine.add_request(f"offline-{number}", prompt, params)
    while engine.has_unfinished_requests():
        engine.step()
    return time.perf_counter() - began, 0


def _over_http(
    client: Pipe, address: str, prompts: list[list[int]], output_len: int, *, stream: bool
) -> tuple[float, int]:
    """Raises RuntimeError: a request was refused, or did not get its tokens."""
    asked: dict[str, Any] = {"max_tokens": output_len, "temperature": 0, "ignore_eos": True}
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    parts = urlsplit(address)
    bodies = [{"prompt": prompt, **asked} for prompt in prompts]
    answer = client.ask({"host": parts.hostname, "port": parts.port, "bodies": bodies})
    if "error" in answer:
        raise RuntimeError(answer["error"])
    if answer["tokens"] != len(prompts) * output_len:
        raise RuntimeError(f"{len(prompts) * output_len} tokens were asked for, and {answer['tokens']} came")
    return answer["seconds"], answer["events"]
