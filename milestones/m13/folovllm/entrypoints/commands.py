"""`folovllm generate | chat | demo`: an engine in a terminal. Answers are printed as they come.

An answer goes to stdout and all else to stderr. What a user can get wrong ends in one line and exit status 2.

vLLM: entrypoints/cli/openai.py, utils/argparse_utils.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import typing
from dataclasses import fields
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

import folovllm
from folovllm.config import EMBEDDED_MODEL, CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from folovllm.engine.chat_messages import chat_to_prompt
from folovllm.outputs import RequestMetrics, RequestOutput
from folovllm.sampling_params import SamplingParams

Messages = list[dict[str, str]]
CHAT_HELP = "/reset forgets the conversation · /quit (or Ctrl-D) ends · Ctrl-C stops an answer"
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
ENGINE = (ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig)
SAMPLING = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "stop", "ignore_eos")  # fmt: skip
notes = Console(stderr=True, highlight=False, soft_wrap=True)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # one line, and no usage above it
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="folovllm", description="FoloVLLM: an LLM inference engine to learn from.")
    add_commands(parser.add_subparsers(dest="command", metavar="COMMAND", required=True))
    try:
        args = parser.parse_args(argv)
        return int(args.run(args))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, NotImplementedError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("generate", help="complete one or more prompts")
    parser.set_defaults(run=generate, max_tokens=128, temperature=0.8)
    parser.add_argument("prompts", metavar="PROMPT", nargs="+", help="text to go on from; - reads stdin")
    parser.add_argument("--chat", action="store_true", help="a prompt is a user's message, to be answered")
    parser.add_argument("--n", type=int, default=1, metavar="N", help="completions of each prompt")
    add_options(parser, SamplingParams, *ENGINE)
    parser = commands.add_parser("chat", help="talk with a model", description=f"A conversation. {CHAT_HELP}.")
    parser.set_defaults(run=chat, max_tokens=512)
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    add_options(parser, SamplingParams, *ENGINE)
    commands.add_parser("demo", help="watch the small model answer and tell a story").set_defaults(run=demo)


def add_options(parser: argparse.ArgumentParser, *configs: Any) -> None:
    """An option for each field: --top-p for top_p. One that is not given stays out of the result."""
    for config in configs:
        hints = typing.get_type_hints(config)
        for field in fields(config):
            is_there = any(action.dest == field.name for action in parser._actions)
            if is_there or (config is SamplingParams and field.name not in SAMPLING):
                continue
            kinds = {hints[field.name], *typing.get_args(hints[field.name])}
            how: dict[str, Any] = {"type": int if int in kinds else float if float in kinds else str}
            if bool in kinds:
                how = {"action": argparse.BooleanOptionalAction}
            elif list[str] in kinds:
                how["action"] = "append"  # may be given again
            default = parser.get_default(field.name) or field.default
            text = f"default: {default}" if type(default) in (int, float) else None
            parser.add_argument("--" + field.name.replace("_", "-"), default=argparse.SUPPRESS, help=text, **how)
    if ModelConfig in configs:
        example = """draft tokens: '{"method": "ngram", "num_speculative_tokens": 4}' (default: none)"""
        parser.add_argument("--speculative-config", type=_json, metavar="JSON", default=argparse.SUPPRESS, help=example)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON, got {text!r}: {error}") from error


def given(args: argparse.Namespace, *configs: Any) -> dict[str, Any]:
    names = {field.name for config in configs for field in fields(config)}
    if ModelConfig in configs:
        names.add("speculative_config")
    return {name: value for name, value in vars(args).items() if name in names}


def load(args: argparse.Namespace) -> folovllm.LLM:
    """The model that was asked for. Its seed is drawn anew: two runs without --seed should differ."""
    kwargs = given(args, *ENGINE) | {"seed": random.SystemRandom().getrandbits(31)}
    text = f"loading {EngineConfig.from_kwargs(**kwargs).model_config.model} …"  # refuses a wrong value
    if not notes.is_terminal:  # where no spinner shows it
        notes.print(text, markup=False)
    with notes.status(escape(text)):
        return folovllm.LLM(**kwargs)  # imports torch


def generate(args: argparse.Namespace) -> int:
    params = SamplingParams(**given(args, SamplingParams))
    llm = load(args)
    texts, prompts = read_prompts(llm, args)
    if len(texts) == params.n == 1:
        return 0 if print_stream(llm, prompts[0], params)[1] else INTERRUPTED
    for text, output in zip(texts, llm.generate(prompts, params), strict=True):
        print_output(text, output)
    return 0


def read_prompts(llm: folovllm.LLM, args: argparse.Namespace) -> tuple[list[str], list[Any]]:
    texts = [sys.stdin.read().rstrip("\n") if prompt == "-" else prompt for prompt in args.prompts]
    messages = [[{"role": "user", "content": text}] for text in texts]
    return texts, [chat_to_prompt(llm.get_tokenizer(), each) for each in messages] if args.chat else texts


def print_output(text: str, output: RequestOutput) -> None:
    notes.print(f"> {text}", style="bold", markup=False)
    for completion in output.outputs:
        print(f"[{completion.index}] {completion.text}" if len(output.outputs) > 1 else completion.text, flush=True)
    notes.print(summary(output), style="dim")


def print_stream(llm: folovllm.LLM, prompt: Any, params: SamplingParams) -> tuple[str, bool]:
    """Prints an answer as it comes. Its text, and False if Ctrl-C ended it: the answer only, not the program."""
    stream = llm.engine.generate_stream(prompt, params)
    text, output, is_whole = "", None, True
    try:
        for output in stream:
            text += output.outputs[0].text
            print(output.outputs[0].text, end="", flush=True)
    except KeyboardInterrupt:
        is_whole = False
    finally:
        stream.close()  # aborts the request where it has not finished
    print(flush=True)
    notes.print("stopped" if output is None else summary(output), style="dim")
    return text, is_whole


def summary(output: RequestOutput) -> str:
    metrics = output.metrics or RequestMetrics(0.0)
    text = f"{metrics.num_output_tokens} tokens: the first after {(metrics.ttft or 0) * 1000:,.0f} ms"
    if metrics.tpot:
        text += f", then {1 / metrics.tpot:,.0f} tokens/s"
    return f"{text} · {', '.join(completion.finish_reason or 'stopped' for completion in output.outputs)}"


def chat(args: argparse.Namespace) -> int:
    # Random draws would only make the small model's definitions worse.
    is_small = getattr(args, "model", EMBEDDED_MODEL) == EMBEDDED_MODEL
    params = SamplingParams(**{"temperature": 0.0 if is_small else 0.7, **given(args, SamplingParams)})
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then edits lines and remembers them
    llm = load(args)
    turns = opening = [{"role": "system", "content": args.system}] if args.system else []
    chat_to_prompt(llm.get_tokenizer(), [*opening, {"role": "user", "content": ""}])  # refused without a template
    notes.print(CHAT_HELP, style="dim")
    while True:
        try:
            line = input("\n> " if sys.stdin.isatty() else "").strip()
            if line == "/quit":
                return 0
            if line == "/reset":
                turns = opening
            elif line.startswith("/"):
                notes.print(CHAT_HELP, style="dim")
            elif line:
                turns = answer(llm, [*turns, {"role": "user", "content": line}], params)
        except EOFError:
            return 0
        except ValueError as error:
            notes.print(f"error: {error}", style="red", markup=False)


def answer(llm: folovllm.LLM, turns: Messages, params: SamplingParams) -> Messages:
    """The conversation with the answer. Where it does not fit, its oldest exchanges are forgotten."""
    limit, first = llm.engine.max_model_len, 1 if turns[0]["role"] == "system" else 0
    room = min(params.max_tokens or limit, max(1, limit // 4))  # for the answer
    for forgotten in range((len(turns) - first + 1) // 2):
        kept = turns[:first] + turns[first + 2 * forgotten :]
        prompt = chat_to_prompt(llm.get_tokenizer(), kept)
        if len(prompt["prompt_token_ids"]) + room <= limit:
            break
    if forgotten:
        notes.print(f"more than {limit} tokens: without the oldest {forgotten} exchanges", style="yellow")
    return [*kept, {"role": "assistant", "content": print_stream(llm, prompt, params)[0]}]


def demo(args: argparse.Namespace) -> int:
    llm = load(args)
    greedy = SamplingParams(temperature=0, max_tokens=120)
    for text in ("What is a KV cache?", "什么是前缀缓存？"):
        notes.print(text, style="bold cyan")
        print_stream(llm, chat_to_prompt(llm.get_tokenizer(), [{"role": "user", "content": text}]), greedy)
    notes.print("Once upon a time …", style="bold cyan")
    print_stream(llm, "Once upon a time", SamplingParams(temperature=0.8, top_p=0.95, seed=2, max_tokens=160))
    return 0
