"""`folovllm demo`: the embedded model answers a question in each language and tells a story, streaming. vLLM: none"""

from __future__ import annotations

import argparse
import time
from typing import Any

QUESTIONS = ("What is a KV cache?", "什么是前缀缓存？")
STORY = "Once upon a time"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="watch the model that ships here answer and tell a story",
        description="Two answers and a story from the embedded model. No download, no options.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from folovllm.config import EMBEDDED_MODEL
    from folovllm.entrypoints.cli.console import PlainConsole
    from folovllm.entrypoints.cli.session import Streamed, load_llm, print_stream
    from folovllm.sampling_params import SamplingParams

    show = PlainConsole(soft_wrap=True)
    start = time.perf_counter()
    llm = load_llm({"model": EMBEDDED_MODEL})

    from folovllm.engine.input_processor import chat_to_prompt

    loaded = time.perf_counter() - start
    show.print(f"loaded in {loaded:.1f} s: {_describe(llm)}\n", style="dim")

    greedy = SamplingParams(temperature=0, max_tokens=120)
    varied = SamplingParams(temperature=0.8, top_p=0.95, seed=2, max_tokens=160)
    done: list[Streamed] = []
    for question in QUESTIONS:
        show.print(question, style="bold cyan")
        prompt = chat_to_prompt(llm.get_tokenizer(), [{"role": "user", "content": question}])
        done.append(print_stream(llm.engine.generate_stream(prompt, greedy)))
        show.print(done[-1].summary() + "\n", style="dim")
        if done[-1].finish_reason == "abort":
            raise KeyboardInterrupt
    show.print(STORY, style="bold cyan", end=" …\n")
    done.append(print_stream(llm.engine.generate_stream(STORY, varied)))
    show.print(done[-1].summary() + "\n", style="dim")
    show.print("(The model is tiny: its sentences hold, the names in its stories wander.)\n", style="dim")

    tokens = sum(answer.num_tokens for answer in done)
    seconds = sum(answer.ttft + answer.decode_seconds for answer in done)
    show.print(f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s", style="bold green")
    show.print("Next: folovllm chat · folovllm generate --help · folovllm info", style="dim")
    return 0


def _describe(llm: Any) -> str:
    from folovllm.engine.threads import threads_for

    engine = llm.engine
    threads = threads_for(engine.model_config.model)
    where = "GPU" if engine.device.type == "cuda" else f"{threads} CPU thread{'s' if threads > 1 else ''}"
    return f"{str(engine.dtype).removeprefix('torch.')} on {where}, up to {engine.max_model_len:,} tokens"
