"""`folovllm generate | chat | demo`: an engine in a terminal. Answers are printed as they come.

An answer goes to stdout and all else to stderr.

vLLM: entrypoints/cli/openai.py, utils/argparse_utils.py
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.markup import escape

import folovllm
from folovllm.config import EMBEDDED_MODEL, CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from folovllm.engine.chat_messages import chat_to_prompt
from folovllm.outputs import RequestMetrics, RequestOutput
from folovllm.sampling_params import SamplingParams

Messages = list[dict[str, str]]
LINE_HELP = "/quit (or Ctrl-D) ends · Ctrl-C stops an answer"
CHAT_HELP = f"/reset forgets the conversation · {LINE_HELP}"
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
ENGINE = (ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


def add_commands(commands: Any) -> None:
    """Without the options that are fields of dataclasses: see cli/parser.py."""
    parser = commands.add_parser("generate", help="complete one or more prompts")
    parser.set_defaults(run=generate, max_tokens=128, temperature=0.8)
    parser.add_argument("prompts", metavar="PROMPT", nargs="+", help="text to go on from; - reads stdin")
    parser.add_argument("--chat", action="store_true", help="a prompt is a user's message, to be answered")
    parser.add_argument("--n", type=int, default=1, metavar="N", help="completions of each prompt")
    parser = commands.add_parser("chat", help="talk with a model", description=f"A conversation. {CHAT_HELP}.")
    parser.set_defaults(run=chat, max_tokens=512)
    parser.add_argument("--system", "--system-prompt", metavar="TEXT", help="a system message before the conversation")
    commands.add_parser("demo", help="watch the small model answer and tell a story").set_defaults(run=demo)


def given(args: argparse.Namespace, *configs: Any) -> dict[str, Any]:
    names = {field.name for config in configs for field in fields(config)}
    if ModelConfig in configs:
        names.add("speculative_config")
    return {name: value for name, value in vars(args).items() if name in names}


def load(args: argparse.Namespace) -> folovllm.LLM:
    """The model that was asked for. Its seed is drawn anew: two runs without --seed should differ."""
    kwargs = given(args, *ENGINE) | {"seed": random.SystemRandom().getrandbits(31)}
    model = EngineConfig.from_kwargs(**kwargs).model_config.model  # refuses a wrong value
    with waiting(f"loading {model} …", notes):
        llm = folovllm.LLM(**kwargs)  # imports torch
    for observe in getattr(args, "observers", ()):  # of a command that observes its engine (--trace at the root)
        observe(llm.engine)
    return llm


def waiting(text: str, console: Console) -> contextlib.AbstractContextManager[object]:
    """Says what takes long: by a spinner at a terminal, by a line elsewhere."""
    if not console.is_terminal:
        console.print(text, markup=False)
    return console.status(escape(text))


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
    llm = load(args)
    opening = [{"role": "system", "content": args.system}] if args.system else []
    chat_to_prompt(llm.get_tokenizer(), [*opening, {"role": "user", "content": ""}])  # refused without a template
    return converse(opening, lambda turns: answer(llm, turns, params))


def converse(
    opening: Messages, reply: Callable[[Messages], Messages], quick: str | None = None, about: str = CHAT_HELP
) -> int:
    """Until who types has had enough. reply: answers a conversation, and returns it with the answer. quick: all that is
    said. about: what may be typed besides."""
    if quick is not None:
        reply([*opening, {"role": "user", "content": quick}])
        return 0
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then edits lines and remembers them
    turns = opening
    notes.print(about, style="dim")
    while True:
        try:
            line = input("\n> " if sys.stdin.isatty() else "").strip()
            if line == "/quit":
                return 0
            if line == "/reset":
                turns = opening
            elif line.startswith("/"):
                notes.print(about, style="dim")
            elif line:
                turns = reply([*turns, {"role": "user", "content": line}])
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
