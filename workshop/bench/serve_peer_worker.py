"""`vllm bench serve` behind a pipe, for serve_peer.py: runs in the virtual environment that has vLLM in it.

    in   {}                                                  once
    out  {"ready": true, "version": ...}                     after the imports, which take some ten seconds
    in   {"argv": ["--base-url", ..., ...]}                  a load: what stands behind `vllm bench serve`
    out  {"result": {"duration": ..., "start_times": ...}}   what --save-result --save-detailed would write

One line of JSON each; a failure is {"error": ..., "stage": ...}, the end of the input ends the process. Nothing of
folovllm may be imported here. Every load makes new connections, as a new process would.

vLLM: entrypoints/cli/benchmark/serve.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO


def main() -> int:
    # Run as a script, this file's folder comes first on the path, with names that others mean otherwise.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]
    answers = private_stdout()
    sys.stdin.readline()
    try:
        import_module("pandas")  # vLLM loads without it, and fails when it reads the file of prompts
        serve: Any = import_module("vllm.benchmarks.serve")  # by name: where this file is checked there is none
        version = import_module("vllm").__version__
        parser = argparse.ArgumentParser()
        serve.add_cli_args(parser)
    except Exception as error:
        answer(answers, error=f"{type(error).__name__}: {error}", stage="import")
        return 1
    answer(answers, ready=True, version=version)
    for line in sys.stdin:
        try:
            result = serve.main(parser.parse_args(json.loads(line)["argv"]))
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            answer(answers, error=f"{type(error).__name__}: {error}", stage="run")
            return 1
        answer(answers, result=result)
    return 0


def private_stdout() -> TextIO:
    """The pipe to the parent, for this file only: what vLLM prints goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer(answers: TextIO, **fields: Any) -> None:
    """numpy's numbers, too, of which the result has some."""
    answers.write(json.dumps(fields, default=float) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
