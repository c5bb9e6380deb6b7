"""Runs in the environment that has a peer or a milestone in it, and hands each request to one engine file.

    in   {"engine": "…/llama_cpp_engine.py", "dtype": ..., ...}           once
    out  {"version": ..., "dtype": of its weights, or null}
    in   {"prompts": [[1, 2], ...], "num_tokens": [32, ...]}
    out  {"steps": [[seconds, tokens, prefill], ...], "tokens": [[...], ...]}

One line of JSON each; a failure is {"error": ..., "stage": ...}, the end of the input ends the process. What an engine
file needs beside it is found in its folder. Nothing of folovllm is imported here: that environment need not have it.

vLLM: none
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO


def main() -> int:
    # The pipe to the parent, for this file only: what a peer prints goes to stderr from here on.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    stage = "import"
    try:
        path = Path(settings.pop("engine"))
        sys.path.insert(0, str(path.parent))
        engine_file = import_module(path.stem)
        for name in engine_file.NEEDS:
            import_module(name)
        stage = "load"
        engine = engine_file.Engine(**settings)
        answer(answers, version=engine.version, dtype=getattr(engine, "dtype", None))
        stage = "run"
        for line in sys.stdin:
            answer(answers, **engine.generate(**json.loads(line)))
    except Exception as error:
        traceback.print_exc()
        answer(answers, error=f"{type(error).__name__}: {error}", stage=stage)
        return 1
    return 0


def answer(answers: TextIO, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
