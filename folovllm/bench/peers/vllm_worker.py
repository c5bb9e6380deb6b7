"""vLLM behind a pipe, for vllm.py: runs in the virtual environment that has vLLM in it.

    in   {"model": ..., "dtype": ..., ...}      the keywords of vLLM's LLM, once
    out  {"ready": true, "version": ...}
    in   {"prompts": [[1, 2], ...], "num_tokens": 32}
    out  {"steps": [[seconds, tokens, prefill], ...], "tokens": [[...], ...]}

One line of JSON each; a failure is {"error": ...}, the end of the input ends the process. Nothing of folovllm
or torch may be imported here: that environment has neither the one nor this one's version of the other.

vLLM: none
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO


def main() -> int:
    # Run as a script, this file's folder comes first on the path, and there `vllm` is our vllm.py.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]
    answers = private_stdout()
    try:
        settings = json.loads(sys.stdin.readline())
        vllm: Any = import_module("vllm")  # by name: where this file is checked there is none
    except Exception as error:
        answer(answers, error=describe(error), stage="import")
        return 1
    try:
        llm = vllm.LLM(**settings)
        answer(answers, ready=True, version=vllm.__version__)
        for number, line in enumerate(sys.stdin):
            request = json.loads(line)
            steps, tokens = generate(vllm, llm.llm_engine, request["prompts"], request["num_tokens"], number)
            answer(answers, steps=steps, tokens=tokens)
    except Exception as error:
        traceback.print_exc()
        answer(answers, error=describe(error), stage="run")
        return 1
    return 0


def private_stdout() -> TextIO:
    """The pipe to the parent, for this file only: what vLLM prints goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer(answers: TextIO, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def generate(
    vllm: Any, engine: Any, prompts: list[list[int]], num_tokens: int, run: int
) -> tuple[list[tuple[float, int, bool]], list[list[int]]]:
    """Time every step of the engine, as the benchmark does with the engine that it is compared with."""
    params = vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    names = [f"run{run}-{number}" for number in range(len(prompts))]
    for name, prompt in zip(names, prompts):  # noqa: B905  nothing newer than that environment's Python
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    tokens: dict[str, list[int]] = {}
    steps: list[tuple[float, int, bool]] = []
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - start
        before = sum(map(len, tokens.values()))
        prefill = not outputs or any(output.request_id not in tokens for output in outputs)
        tokens.update({output.request_id: list(output.outputs[0].token_ids) for output in outputs})
        steps.append((seconds, sum(map(len, tokens.values())) - before, prefill))
    return steps, [tokens[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
