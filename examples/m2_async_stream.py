"""Four users of one engine at once: each reads its own stream, one of them leaves in the middle.

Run it: python examples/m2_async_stream.py
"""

from __future__ import annotations

import asyncio
import time

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console

from folovllm import AsyncLLM, SamplingParams

console = Console(highlight=False, soft_wrap=True)
start = time.perf_counter()


def say(style: str, name: str, text: str) -> None:
    console.print(f"{time.perf_counter() - start:6.2f} s  {name:<6}", style=style, end="")
    console.print(text, markup=False)


async def read(llm: AsyncLLM, name: str, style: str, prompt: str, seed: int) -> None:
    """One user: shows what has come, whenever it is 16 tokens more."""
    shown = 0
    try:
        params = SamplingParams(temperature=0.7, seed=seed, max_tokens=64, ignore_eos=True)
        async for output in llm.generate(prompt, params):
            completion = output.outputs[0]
            if len(completion.token_ids) % 16 == 0 or output.finished:
                say(style, name, repr(completion.text[shown:]))
                shown = len(completion.text)
    except asyncio.CancelledError:  # generate() has told the engine; nobody else notices
        say(style, name, "(has left)")
        raise


async def main() -> None:
    async with AsyncLLM() as llm:
        users = [
            asyncio.create_task(read(llm, "Ada", "green", "Once upon a time", 1)),
            asyncio.create_task(read(llm, "Bert", "red", "In the forest", 2)),
            asyncio.create_task(read(llm, "小草", "cyan", "从前", 3)),
        ]
        while llm.stats().output_tokens < 60:
            await asyncio.sleep(0.001)
        stats = llm.stats()
        say("dim", "", f"running {stats.running}, tokens in the cache {stats.kv_tokens_used}: Bert leaves, Cleo comes")
        users[1].cancel()
        users.append(asyncio.create_task(read(llm, "Cleo", "magenta", "There was a", 4)))
        await asyncio.gather(*users, return_exceptions=True)
        stats = llm.stats()
        say("dim", "", f"running {stats.running}, tokens in the cache {stats.kv_tokens_used}")
        rows = stats.output_tokens / stats.steps
        say("dim", "", f"{stats.output_tokens} tokens in {stats.steps} steps: {rows:.2f} at a time")


asyncio.run(main())
