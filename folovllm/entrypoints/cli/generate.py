"""`folovllm generate` with --json, --stream and --logprobs, without which it is commands.generate; and `folovllm chat`
with the checkpoint's own sampling defaults.

vLLM: entrypoints/cli/openai.py
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.entrypoints import commands
from folovllm.entrypoints.cli.parser import ENTRY, add_sampling_arguments
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.outputs import LEAST_LOGPROB, RequestOutput
from folovllm.sampling_params import SamplingParams


def extend(generate: argparse.ArgumentParser, chat: argparse.ArgumentParser) -> None:
    text = "with --json: the K likeliest tokens at each step (default: none)"
    generate.add_argument("--logprobs", type=int, metavar="K", help=text)
    text = "print text as it comes (default: yes for one prompt with n=1, unless --json)"
    generate.add_argument("--stream", action=argparse.BooleanOptionalAction, help=text)
    text = "one JSON object a line: per prompt, or per step with --stream"
    generate.add_argument("--json", action="store_true", help=text)
    generate.set_defaults(run=run)
    add_sampling_arguments(generate, **ENTRY)
    own = {"temperature": "0.7; 0 for the embedded model", "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    own["repetition_penalty"] = 1.0
    said = {name: f"the checkpoint's own, else {value}" for name, value in own.items()}
    add_sampling_arguments(chat, **ENTRY, **said)
    chat.set_defaults(run=run_chat)


def run_chat(args: argparse.Namespace) -> int:
    for name, value in load_generation_defaults(ModelConfig(getattr(args, "model", EMBEDDED_MODEL))).items():
        if name not in args:
            setattr(args, name, value)
    return commands.chat(args)


def run(args: argparse.Namespace) -> int:
    if not args.json and args.logprobs is None and args.stream is None:
        return commands.generate(args)
    params = SamplingParams(**commands.given(args, SamplingParams))
    if args.logprobs is not None and not args.json:
        raise ValueError(f"--logprobs must be given with --json, got {args.logprobs} without it")
    if args.stream and not args.json and params.n > 1:
        raise ValueError("--stream prints one text as it comes: leave out --n, or add --json")
    llm = commands.load(args)
    texts, prompts = commands.read_prompts(llm, args)
    if args.stream:
        for text, prompt in zip(texts, prompts, strict=True):
            if args.json:
                for number, delta in enumerate(llm.engine.generate_stream(prompt, params)):
                    print(as_json(delta, with_prompt=number == 0), flush=True)
            else:
                commands.notes.print(f"> {text}", style="bold", markup=False)
                if not commands.print_stream(llm, prompt, params)[1]:
                    return commands.INTERRUPTED
        return 0
    for text, output in zip(texts, llm.generate(prompts, params), strict=True):
        if args.json:
            print(as_json(output), flush=True)
        else:
            commands.print_output(text, output)
    return 0


def as_json(output: RequestOutput, *, with_prompt: bool = True) -> str:
    """`with_prompt`: of the lines of a stream only the first repeats the prompt; the others have its request_id."""
    data = dataclasses.asdict(output)
    if not with_prompt:
        data = {name: value for name, value in data.items() if not name.startswith("prompt")}
    if output.metrics is not None:
        data["metrics"] |= {name: getattr(output.metrics, name) for name in ("ttft", "tpot", "e2e_latency")}
    return json.dumps(_finite(data), ensure_ascii=False, allow_nan=False)


def _finite(data: Any) -> Any:
    """JSON knows no infinity. What cannot be drawn has the log-probability -9999, as in vLLM's answers."""
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return LEAST_LOGPROB if data == -math.inf else data
