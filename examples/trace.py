"""A run, step by step: what each sequence computes, what it finds in the cache, what gives way, what is copied.

Run it: python examples/trace.py              keeps nothing
        python examples/trace.py run.gz    keeps the trace: folovllm trace view run.gz
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams
from folovllm.tracing.attach import TraceFile
from folovllm.tracing.reader import Trace, read_trace, rows_of

# 32 tokens, which fill two blocks of 16; and one of 70.
CAT = (
    "Once upon a time, there was a little cat named Max. Max lived near the lake with Anna and Leo. "
    "Every morning they walked to the old mill."
)
BEAR = (
    "One day there was a race from the village to the lake. A little bear named Tim wanted to win. The race began, and "
    "Tim ran as well as he could. Then he saw a lion who had fallen and hurt a foot. Tim stopped to help. They did not "
    "win, but everybody cheered for them. In the evening"
)
# Before step: (name, prompt, sampling parameters). A has two answers; B's prompt takes several steps; C begins as A.
ARRIVALS = {
    1: [("A", CAT + " Then one day Max saw a", SamplingParams(n=2, max_tokens=24, ignore_eos=True, seed=0))],
    2: [("B", BEAR, SamplingParams(max_tokens=14, ignore_eos=True, temperature=0))],
    9: [("C", CAT + " But one day Max was very cold and could", SamplingParams(max_tokens=18, ignore_eos=True))],
}


def run(path: Path) -> Trace:
    """12 blocks are too few for all three."""
    limits = {"num_kv_blocks": 12, "max_num_batched_tokens": 48, "max_model_len": 192}
    trace_file = TraceFile(path)
    llm = LLM(observers=[trace_file], dtype="float32", preemption_mode="recompute", **limits)
    step = 1
    while step <= max(ARRIVALS) or llm.engine.has_unfinished_requests():
        for name, prompt, params in ARRIVALS.get(step, []):
            llm.engine.add_request(name, prompt, params)
        llm.engine.step()
        step += 1
    trace_file.close()
    return read_trace(path)


def show(trace: Trace) -> None:
    columns = ("step", "prefill", "decode", "free blocks", "what else")
    table = Table(*columns, title="48 tokens a step, 12 blocks of 16 tokens")
    for record in trace.steps:
        news = [f"{seq_id} finds {found} tokens" for seq_id, found in record.admitted if found]
        news += [f"{child} forks from {parent}" for parent, child in record.forks]
        news += [f"block {source} is copied to {target}" for source, target in record.copies]
        news += [f"{seq_id} gives way" for seq_id, _ in record.preempted]
        news += [f"{seq_id} ends" for seq_id, _ in record.ended]
        chunks = [row for row in rows_of(record) if row.kind == "prefill"]
        prefill = [f"{row.seq_id} {row.start}..{row.start + row.num_tokens - 1}" for row in chunks]
        decode = [row.seq_id for row in rows_of(record) if row.kind == "decode"]
        if prefill or news:
            table.add_row(str(record.step), ", ".join(prefill), " ".join(decode), str(record.free), ", ".join(news))
    Console().print(table)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        show(run(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            show(run(Path(folder) / "run.gz"))
