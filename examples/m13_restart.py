"""Kill an engine, start another, and see that its first request finds what the first one has computed.

    engine 1   system prompt + question   computes all blocks, keeps them in a folder     killed
    engine 2   system prompt + question   reads the system prompt's blocks back, computes the question

Each engine is a process of its own. Both say how many prompt tokens they had not to compute.

Run it: python examples/m13_restart.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _tree  # noqa: F401 - folovllm is this tree's

SYSTEM = "You explain how language models are served, in one short sentence, to somebody who reads code. " * 8
QUESTIONS = ("What is a KV cache?", "What is prefix caching?", "What is paged attention?")


def engine(folder: str) -> None:
    """Answers the questions that come on its input, a line each."""
    from folovllm import LLM, SamplingParams

    llm = LLM(dtype="float32", kv_offloading_size=0.25, kv_offloading_path=folder)
    greedy = SamplingParams(temperature=0, max_tokens=16)
    for line in sys.stdin:
        (output,) = llm.generate(SYSTEM + line, greedy, use_tqdm=False)
        stored = llm.engine.core.flush()  # or a kill that comes at once would cost the last blocks
        assert stored is not None
        stored.result()
        tokens, found = len(output.prompt_token_ids), output.num_cached_tokens
        print(json.dumps({"text": output.outputs[0].text, "tokens": tokens, "found": found}), flush=True)


class Engine:
    def __init__(self, folder: str) -> None:
        command = [sys.executable, __file__, folder]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(question, file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = []
        for number in (1, 2):
            one = Engine(folder)
            said = [one.ask(question) for question in QUESTIONS]
            one.kill()
            answers.append([each["text"] for each in said])
            found = ", ".join(f"{each['found']} of {each['tokens']}" for each in said)
            files = sum(path.is_file() for path in Path(folder).rglob("*"))
            print(f"engine {number} found {found} prompt tokens; killed, it leaves {files} files")
        print("the answers are the same" if answers[0] == answers[1] else f"they differ: {answers}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        engine(sys.argv[1])
    else:
        main()
