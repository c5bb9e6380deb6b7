"""`folovllm generate`: complete prompts from the command line or from stdin.

vLLM: entrypoints/cli/openai.py (CompleteCommand)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from folovllm.entrypoints.cli.parser import (
    add_engine_arguments,
    add_model_arguments,
    add_sampling_arguments,
    model_kwargs,
    sampling_params,
)
from folovllm.outputs import LEAST_LOGPROB

if TYPE_CHECKING:
    from folovllm.entrypoints.llm import LLM
    from folovllm.outputs import RequestOutput
    from folovllm.sampling_params import SamplingParams


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="complete one or more prompts",
        description="Complete each prompt. The text goes to stdout, everything else to stderr.",
    )
    parser.add_argument("prompts", metavar="PROMPT", nargs="+", help="text to go on from; - reads stdin")
    parser.add_argument("--chat", action="store_true", help="a prompt is a user's message, to be answered")
    parser.add_argument("--n", type=int, metavar="N", default=1, help="completions of each prompt")
    parser.add_argument("--logprobs", type=int, metavar="K", help="show the K likeliest tokens at each step")
    parser.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        help="print text as it comes (default: yes for one prompt with n=1, unless --json or --logprobs)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line: per prompt, or per step with --stream"
    )
    add_model_arguments(parser)
    add_sampling_arguments(parser, max_tokens=128, temperature=0.8)
    add_engine_arguments(parser)  # after --seed, which is that of the sampling here
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args, n=args.n, logprobs=args.logprobs)
    stream = args.stream
    if stream is None:
        stream = len(args.prompts) == 1 and params.n == 1 and not args.json and args.logprobs is None
    if stream and not args.json and (params.n > 1 or args.logprobs is not None):
        raise ValueError("--stream prints one text as it comes: leave out --n and --logprobs, or add --json")
    kwargs = model_kwargs(args)
    texts = _read_prompts(args.prompts)

    from folovllm.entrypoints.cli.session import load_llm

    llm = load_llm(kwargs)
    prompts = _as_chat(llm, texts) if args.chat else texts
    if args.json:
        _print_json(llm, prompts, params, stream)
    elif stream:
        _print_streams(llm, texts, prompts, params)
    else:
        _print_whole(llm, texts, prompts, params)
    return 0


def _read_prompts(arguments: list[str]) -> list[str]:
    if arguments.count("-") > 1:
        raise ValueError("- reads all of stdin: it can be given once")
    if "-" in arguments and sys.stdin is None:
        raise ValueError("- reads stdin, which is closed")
    prompts = [sys.stdin.read().rstrip("\n") if argument == "-" else argument for argument in arguments]
    for argument, prompt in zip(arguments, prompts, strict=True):
        if not prompt:
            raise ValueError("prompt must not be empty, got ''" + (" from stdin" if argument == "-" else ""))
    return prompts


def _as_chat(llm: LLM, texts: list[str]) -> list[Any]:
    from folovllm.engine.input_processor import chat_to_prompt

    return [chat_to_prompt(llm.get_tokenizer(), [{"role": "user", "content": text}]) for text in texts]


def _print_json(llm: LLM, prompts: list[Any], params: SamplingParams, stream: bool) -> None:
    if not stream:
        for output in llm.generate(prompts, params, use_tqdm=False):
            print(as_json(output), flush=True)
        return
    for prompt in prompts:
        for number, delta in enumerate(llm.engine.generate_stream(prompt, params)):
            print(as_json(delta, with_prompt=number == 0), flush=True)


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


def _print_streams(llm: LLM, texts: list[str], prompts: list[Any], params: SamplingParams) -> None:
    from folovllm.entrypoints.cli.session import notes, print_stream

    for text, prompt in zip(texts, prompts, strict=True):
        stream = llm.engine.generate_stream(prompt, params)
        _print_prompt(text, always=len(texts) > 1)
        done = print_stream(stream)
        notes.print(done.summary(), style="dim")
        if done.finish_reason == "abort":
            raise KeyboardInterrupt


def _print_whole(llm: LLM, texts: list[str], prompts: list[Any], params: SamplingParams) -> None:
    from rich.table import Table

    from folovllm.entrypoints.cli.session import logprobs_lines, notes, summarize

    for text, output in zip(texts, llm.generate(prompts, params, use_tqdm=sys.stdout.isatty()), strict=True):
        _print_prompt(text, always=len(texts) > 1)
        for completion in output.outputs:
            if len(output.outputs) > 1:
                print(f"[{completion.index}]", end=" ")
            print(completion.text, flush=True)
            if params.logprobs is not None:
                table = Table("token", "logprob", "likeliest", box=None, pad_edge=False)
                for row in logprobs_lines(completion):
                    table.add_row(*(_plain(cell) for cell in row))
                notes.print(table)
        notes.print(summarize(output), style="dim")


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)  # a token such as "[/" is no markup


def _print_prompt(text: str, *, always: bool) -> None:
    """On a terminal, or where there are several, the prompt stands before its completion."""
    from folovllm.entrypoints.cli.session import notes

    if always or sys.stdout.isatty():
        notes.print(_plain(f"> {text}"), style="bold")
