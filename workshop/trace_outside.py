"""Runs a small load on the tree that it finds, and writes what each step did, in the format of a trace.

    PYTHONPATH=TREE python workshop/trace_outside.py m3 run.jsonl

A milestone's tree has no tracer. There the calls of the engine's own scheduler are watched from outside, and what they
say is written as the tracer writes it (docs/en/trace-format.md); M6's loads run at the root, whose tracer does that.
Times are simulated, so that a picture is the same on every machine: a step takes 1 ms, and 0.05 ms for each token.

This file stands alone. It runs with the packages of an earlier milestone, so it imports nothing of the workshop.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STEP_SECONDS, TOKEN_SECONDS = 1e-3, 5e-5

# name, prompt tokens, tokens to generate, steps that are over when it arrives, and how many answers
Load = list[tuple[str, list[int], int, int, int]]


def _prompt(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


SYSTEM = _prompt(100, 16)
JOIN_AND_LEAVE: Load = [
    ("A", _prompt(10, 6), 9, 0, 1),
    ("B", _prompt(30, 12), 4, 1, 1),
    ("C", _prompt(50, 8), 8, 2, 1),
    ("D", _prompt(70, 5), 6, 3, 1),
    ("E", _prompt(90, 10), 4, 6, 1),
]
TOO_FEW_BLOCKS: Load = [
    ("A", _prompt(10, 10), 14, 0, 2),
    ("B", _prompt(30, 14), 12, 1, 1),
    ("C", _prompt(60, 9), 10, 3, 1),
]
LONG_PROMPT: Load = [
    ("A", _prompt(10, 6), 14, 0, 1),
    ("B", _prompt(30, 8), 13, 0, 1),
    ("C", _prompt(50, 5), 12, 1, 1),
    ("long", _prompt(100, 96), 4, 4, 1),
]
SAME_BEGINNING: Load = [
    ("A", [*SYSTEM, *_prompt(10, 5)], 6, 0, 1),
    ("B", [*SYSTEM, *_prompt(30, 7)], 6, 4, 1),
    ("C", [*SYSTEM, *_prompt(50, 6)], 6, 7, 1),
    ("D", [*SYSTEM, *_prompt(70, 4)], 6, 9, 1),
]
GIVES_WAY: Load = [
    ("A", _prompt(10, 12), 16, 0, 1),
    ("B", _prompt(40, 16), 14, 1, 1),
    ("C", _prompt(80, 14), 12, 2, 1),
]

_WHOLE = {"max_num_batched_tokens": 128, "max_model_len": 128}
_CHUNKS = {"enable_chunked_prefill": True, "async_scheduling": False, "max_model_len": 128, "block_size": 4}
_FEW = {
    **_CHUNKS, "num_kv_blocks": 15, "max_model_len": 60, "max_num_batched_tokens": 16, "enable_prefix_caching": False
}  # fmt: skip
# What is run: on which tree, with which options.
RUNS: dict[str, tuple[str, Load, dict[str, Any]]] = {
    "m2": ("m2", JOIN_AND_LEAVE, {"max_num_seqs": 3, "max_num_batched_tokens": 32, "max_model_len": 32}),
    "m3": (
        "m3",
        TOO_FEW_BLOCKS,
        {"block_size": 4, "num_kv_blocks": 14, "max_num_batched_tokens": 48, "max_model_len": 48},
    ),
    "m5-whole": ("m4", LONG_PROMPT, {"block_size": 4, "num_kv_blocks": 64, "async_scheduling": False, **_WHOLE}),
    "m5-chunks": ("m5", LONG_PROMPT, {**_CHUNKS, "num_kv_blocks": 64, "max_num_batched_tokens": 16}),
    "m6-off": (
        "m6",
        SAME_BEGINNING,
        {**_CHUNKS, "num_kv_blocks": 40, "max_num_batched_tokens": 16, "enable_prefix_caching": False},
    ),
    "m6-on": ("m6", SAME_BEGINNING, {**_CHUNKS, "num_kv_blocks": 40, "max_num_batched_tokens": 16}),
    "m6-recompute": ("m6", GIVES_WAY, {**_FEW, "preemption_mode": "recompute"}),
    "m6-swap": ("m6", GIVES_WAY, {**_FEW, "preemption_mode": "swap"}),
}


class Outside:
    """Notes what the scheduler of an earlier tree decides, in records."""

    def __init__(self, engine: Any, facts: dict[str, Any]) -> None:
        self.engine, self.scheduler, self.now = engine, engine.scheduler, 0.0
        kv = getattr(self.scheduler, "kv", None)
        slots = getattr(self.scheduler, "num_slots", 0)  # M2: a slot is a block that holds a whole sequence
        self._slot = 1 if kv is None else 0  # slots are counted from 0, blocks from 1
        self._num_blocks = slots if kv is None else kv.pool.num_blocks
        self.records: list[dict[str, Any]] = [
            {
                "type": "header",
                **facts,
                "num_blocks": self._num_blocks,
                "block_size": self.scheduler.max_model_len if kv is None else kv.block_size,
                "num_swap_blocks": 0 if kv is None else self._num_blocks,
                "max_num_seqs": self.scheduler.max_num_seqs,
                "max_num_batched_tokens": self.scheduler.max_num_batched_tokens,
                "max_model_len": self.scheduler.max_model_len,
                "prefix_caching": False,
            }
        ]
        self._requests: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._tables: dict[str, list[int]] = {}
        self._known: dict[str, Any] = {}  # the sequences that have not ended
        self._statuses: dict[str, str] = {}
        self._fresh: list[list[Any]] = []
        self._arrived: list[dict[str, Any]] = []
        self._ended: list[list[Any]] = []
        self._output: Any = None
        self._schedule, self.scheduler.schedule = self.scheduler.schedule, self._scheduled
        self._update, self.scheduler.update_from_output = self.scheduler.update_from_output, self._updated

    def arrived(self, name: str, num_prompt_tokens: int, max_tokens: int, num_seqs: int) -> None:
        number = self._requests[name] = len(self._requests)
        arrival = {"request": number, "id": name, "t": self._us(), "prompt_tokens": num_prompt_tokens, "prompt": None}
        self._arrived.append({**arrival, "max_tokens": max_tokens, "num_seqs": num_seqs, "priority": 0})
        self._number(f"{name}-0")

    def _us(self) -> int:
        return round(self.now * 1e6)

    def _number(self, seq_id: str) -> int:
        if seq_id not in self._numbers:
            self._numbers[seq_id] = len(self._numbers)
            self._fresh.append([self._numbers[seq_id], self._requests[seq_id.rpartition("-")[0]], seq_id])
        return self._numbers[seq_id]

    def _scheduled(self) -> Any:
        output = self._output = self._schedule()
        forks = getattr(output, "forks", [])
        for seq in [*output.scheduled_seqs, *(child for _, child in forks)]:
            self._known[seq.seq_id] = seq
        rows = list(zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True))
        self._decodes = [seq for seq, num in rows if num == 1 and seq.num_computed_tokens >= seq.get_prompt_len()]
        record: dict[str, Any] = {
            "type": "step",
            "step": len(self.records),
            "t": self._us(),
            "times": [0, 0, round((STEP_SECONDS + TOKEN_SECONDS * sum(output.num_scheduled_tokens)) * 1e6), 0, 0],
            "prefill": [
                [self._number(seq.seq_id), seq.num_computed_tokens, num]
                for seq, num in rows
                if seq not in self._decodes
            ],
            "decode": [self._number(seq.seq_id) for seq in self._decodes],
            "forks": [[self._number(parent.seq_id), self._number(child.seq_id)] for parent, child in forks],
            "preempted": [],
            "resumed": [],
            "tables": [],
            "waiting": len(self.scheduler.waiting),
        }
        self._note_moves(record)
        for name, pairs in (
            ("copies", "blocks_to_copy"), ("swapped_out", "blocks_to_swap_out"), ("swapped_in", "blocks_to_swap_in")
        ):  # fmt: skip
            record[name] = [list(pair) for pair in getattr(output, pairs, [])]
        record["free"] = self._num_blocks - len({block for table in self._tables.values() for block in table})
        record["seqs"], self._fresh = self._fresh, []
        record["arrived"], self._arrived = self._arrived, []
        self.records.append(record)
        return output

    def _note_moves(self, record: dict[str, Any]) -> None:
        """Statuses and block tables that are not what they were."""
        for seq_id, seq in list(self._known.items()):
            number, before, status = self._number(seq_id), self._statuses.get(seq_id), seq.status.name
            if before == "RUNNING" and status in ("WAITING", "SWAPPED"):
                record["preempted"].append([number, "swap" if status == "SWAPPED" else "recompute"])
            if before == "SWAPPED" and status == "RUNNING":
                record["resumed"].append(number)
            self._statuses[seq_id] = status
            table = [block + self._slot for block in seq.block_ids] if status == "RUNNING" else []
            if table != self._tables.get(seq_id, []):
                record["tables"].append([number, 0, table])
            self._tables[seq_id] = table
            if seq.is_finished():
                del self._known[seq_id], self._tables[seq_id]

    def _updated(self, output: Any, token_ids: Any, *rest: Any) -> Any:
        record = self.records[-1]
        self.now += sum(record["times"]) / 1e6
        drawn = {seq.seq_id for seq, token in zip(output.rows, token_ids, strict=True) if token is not None}
        record["tokens"] = [-1 if seq.seq_id in drawn else None for seq in self._decodes]
        others = drawn - {seq.seq_id for seq in self._decodes}
        record["first"] = sorted([self._number(seq_id), -1] for seq_id in others)
        return self._update(output, token_ids, *rest)

    def stepped(self) -> None:
        """Behind a step of the engine: who ended by it."""
        for seq_id, seq in self._known.items():
            if seq.is_finished() and self._statuses[seq_id] != "ended":
                self._statuses[seq_id] = "ended"
                self.records[-1].setdefault("ended", []).append([self._number(seq_id), "length"])


def run(name: str, path: Path) -> None:
    """Write the trace of RUNS[name]; the tree that it asks for must be the one that is imported."""
    from folovllm import LLM, SamplingParams

    tree, load, options = RUNS[name]
    engine = LLM(dtype="float32", device="cpu", skip_tokenizer_init=True, **options).engine
    facts = {"version": 2, "made_by": f"folovllm at {tree}", "started": 0, "clock": "simulated", "model": "embedded"}
    facts |= {"device": "cpu", "dtype": "float32", "policy": "fcfs", "texts": False}
    facts |= {"chunked_prefill": "enable_chunked_prefill" in options, "preemption_mode": "auto"}
    outside, traced, now = None, None, [0.0]
    if tree == "m6":
        from folovllm.core.observer import EngineObserver
        from folovllm.tracing.attach import attach
        from folovllm.tracing.writer import TraceWriter

        class Clock(EngineObserver):
            def scheduled(self, output: Any) -> None:
                now[0] += STEP_SECONDS + TOKEN_SECONDS * output.total_num_scheduled_tokens

        traced = attach(engine, TraceWriter(path), lambda: now[0], texts=False)
        engine.observers.append(Clock())  # behind the tracer, which has then read when the schedule was made
    else:
        outside = Outside(engine, facts)
    calls, left = 0, list(load)
    while left or engine.has_unfinished_requests():
        for request in [request for request in left if request[3] <= calls]:
            left.remove(request)
            request_id, prompt, max_tokens, _, count = request
            params = SamplingParams(n=count, max_tokens=max_tokens, ignore_eos=True, seed=0 if count > 1 else None,
                                    temperature=1.0 if count > 1 else 0.0)  # fmt: skip
            if outside is not None:
                outside.arrived(request_id, len(prompt), max_tokens, count)
            engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        engine.step()
        if outside is not None:
            outside.stepped()
        calls += 1
    if traced is not None:
        traced.close()
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0]) | facts | {"preemption_mode": options.get("preemption_mode", "auto")}
        lines[0] = json.dumps(header, separators=(",", ":"))
    if outside is not None:
        outside.records.append({"type": "end", "t": outside._us()})
        lines = [json.dumps(_small(record), separators=(",", ":")) for record in outside.records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _small(record: dict[str, Any]) -> dict[str, Any]:
    """Without empty fields; an empty `decode` says that none does."""
    if record["type"] != "step":
        return record
    return {name: value for name, value in record.items() if value != [] or name == "decode"}


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
