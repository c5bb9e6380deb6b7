"""One request through one milestone's engine, watched: the process behind `python -m milestones path`.

    python -P path_worker.py TREE '{"greedy": false}'      one line of JSON on stdout

Only that milestone's tree is on the path, and nothing of `milestones` is imported. sys.setprofile reports each
call and each return; kept are those of folovllm's own functions. A request runs before the one that is watched:
what is made once and kept (layouts, buffers) is no part of a step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

NUM_TOKENS = 9  # a prefill and eight decode steps: the middle one is far from both ends
INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}  # functions of their own in Python 3.11 alone


class Watch:
    """Calls of the package's functions, in the order in which they are entered."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}{os.sep}"
        self.calls: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._prefix) and code.co_name not in INLINED:
            self.calls.append(code)

    def during(self, action: Callable[[], Any]) -> list[CodeType]:
        self.calls = []
        sys.setprofile(self)
        try:
            action()
        finally:
            sys.setprofile(None)
        return self.calls


def serve(engine: Any, params: Any, name: str, prompt: str, watch: Watch) -> list[list[CodeType]]:
    """One request from add_request to its end; what was called on the way in, then in each step."""
    steps = [watch.during(lambda: engine.add_request(name, prompt, params))]
    while engine.has_unfinished_requests():
        steps.append(watch.during(engine.step))
    return steps


def relative(code: CodeType, package: Path) -> str:
    return Path(code.co_filename).relative_to(package).as_posix()


def describe(steps: list[list[CodeType]], package: Path) -> dict[str, Any]:
    """Names and numbers out of the calls: of the middle decode step, and of everything together."""
    decodes = steps[2:]  # behind add_request and the prefill
    decode = decodes[len(decodes) // 2]
    functions: dict[str, Counter[str]] = {}
    for code in decode:
        functions.setdefault(relative(code, package), Counter())[code.co_qualname] += 1
    first_lines: dict[str, set[int]] = {}
    for code in (code for step in steps for code in step):
        first_lines.setdefault(relative(code, package), set()).add(code.co_firstlineno)
    return {
        # A switch is a call into another file than that of the call before.
        "switches": sum(a.co_filename != b.co_filename for a, b in pairwise(decode)),
        "functions": functions,
        "first_lines": {path: sorted(lines) for path, lines in first_lines.items()},
    }


def main() -> None:
    tree, options = Path(sys.argv[1]).resolve(), json.loads(sys.argv[2])
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not end up in the answer
    import folovllm

    package = tree / "folovllm"
    found = Path(folovllm.__file__).resolve().parent
    if found != package:
        sys.exit(f"folovllm was loaded from {found}, not from {package}")
    engine = folovllm.LLM(device="cpu", dtype="float32").engine
    how: dict[str, Any] = {"temperature": 0.0} if options["greedy"] else {"temperature": 0.8, "top_p": 0.95, "seed": 7}
    params = folovllm.SamplingParams(**how, max_tokens=NUM_TOKENS, ignore_eos=True)
    # A background job of a shell ignores Ctrl-C, and the engine then has nothing to defer.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watch = Watch(package)
    serve(engine, params, "before", "The little dog", watch)
    steps = serve(engine, params, "watched", "Once upon a time", watch)
    json.dump(describe(steps, package), answer)


if __name__ == "__main__":
    main()
