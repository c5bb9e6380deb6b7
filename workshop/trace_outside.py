"""Runs a small load on the tree that it finds, and writes what each step did, in the format of a trace.

    PYTHONPATH=TREE python workshop/trace_outside.py m3 run.gz

A milestone's tree has no tracer. There the calls of the engine's own scheduler are watched from outside, and what they
say is written as the tracer writes it (docs/en/trace-format.md); M6's loads run at the root, which has records.
Times are simulated, so that a picture is the same on every machine: a step takes 1 ms, and 0.05 ms for each token.

This file stands alone. It runs with the packages of an earlier milestone, so it imports nothing of the workshop.
"""

from __future__ import annotations

import gzip
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
        self._tables: dict[str, list[int]] = {}
        self._known: dict[str, Any] = {}  # the sequences that have not ended
        self._statuses: dict[str, str] = {}
        self._arrived: list[dict[str, Any]] = []
        self._schedule, self.scheduler.schedule = self.scheduler.schedule, self._scheduled
        self._update, self.scheduler.update_from_output = self.scheduler.update_from_output, self._updated

    def arrived(self, name: str, num_prompt_tokens: int, max_tokens: int, num_seqs: int) -> None:
        arrival = {"id": name, "t": self.microseconds(), "prompt_tokens": num_prompt_tokens}
        self._arrived.append({**arrival, "max_tokens": max_tokens, "num_seqs": num_seqs})

    def microseconds(self) -> int:
        return round(self.now * 1e6)

    def _scheduled(self) -> Any:
        output = self._schedule()
        forks = getattr(output, "forks", [])
        rows = [*output.scheduled_seqs, *(child for _, child in forks)]
        self._known |= {seq.seq_id: seq for seq in rows}
        took = round((STEP_SECONDS + TOKEN_SECONDS * sum(output.num_scheduled_tokens)) * 1e6)
        record: dict[str, Any] = {
            "type": "step",
            "step": len(self.records),
            "t": self.microseconds(),
            "times": [0, 0, took, 0, 0],
            "seq_ids": [seq.seq_id for seq in rows],
            "num_computed_tokens": [seq.num_computed_tokens for seq in rows],
            "num_scheduled_tokens": [*output.num_scheduled_tokens, *(0 for _ in forks)],
            "num_prompt_tokens": [seq.get_prompt_len() for seq in rows],
            "forks": [[parent.seq_id, child.seq_id] for parent, child in forks],
            "preempted": [],
            "resumed": [],
            "finished": [],
            "tables": {},
            "waiting": len(self.scheduler.waiting),
        }
        self._note_moves(record)
        for name, pairs in (
            ("copies", "blocks_to_copy"), ("swapped_out", "blocks_to_swap_out"), ("swapped_in", "blocks_to_swap_in")
        ):  # fmt: skip
            record[name] = [list(pair) for pair in getattr(output, pairs, [])]
        record["free"] = self._num_blocks - len({block for table in self._tables.values() for block in table})
        record["arrived"], self._arrived = self._arrived, []
        self.records.append(record)
        return output

    def _note_moves(self, record: dict[str, Any]) -> None:
        """Statuses and block tables that are not what they were."""
        for seq_id, seq in list(self._known.items()):
            before, status = self._statuses.get(seq_id), seq.status.name
            if before == "RUNNING" and status in ("WAITING", "SWAPPED"):
                record["preempted"].append([seq_id, "swap" if status == "SWAPPED" else "recompute"])
            if before == "SWAPPED" and status == "RUNNING":
                record["resumed"].append(seq_id)
            self._statuses[seq_id] = status
            table = [block + self._slot for block in seq.block_ids] if status == "RUNNING" else []
            if table != self._tables.get(seq_id, []) and table:
                record["tables"][seq_id] = table
            self._tables[seq_id] = table
            if seq.is_finished():
                record["finished"].append(seq_id)
                del self._known[seq_id], self._tables[seq_id]

    def _updated(self, output: Any, token_ids: Any, *rest: Any) -> Any:
        record = self.records[-1]
        self.now += sum(record["times"]) / 1e6
        record["token_ids"] = [None if token is None else -1 for token in token_ids]
        return self._update(output, token_ids, *rest)

    def stepped(self) -> None:
        """Behind a step of the engine: who ended by it."""
        for seq_id, seq in self._known.items():
            if seq.is_finished() and self._statuses[seq_id] != "ended":
                self._statuses[seq_id] = "ended"
                self.records[-1].setdefault("ended", []).append([seq_id, "length"])


class Inside:
    """The same of the newest engine, by its own records; its clock is simulated."""

    def __init__(self, engine: Any, facts: dict[str, Any]) -> None:
        from dataclasses import asdict

        from folovllm.tracing.attach import make_header
        from folovllm.tracing.records import Step

        self.now, self._arrivals = 0.0, dict[str, int]()
        known = {name: facts[name] for name in ("model", "device", "dtype", "preemption_mode", "clock", "texts")}
        header = asdict(make_header(engine.scheduler, **known))
        self.records: list[dict[str, Any]] = [{"type": "header", **header, **facts}]

        def noted(record: Any) -> None:
            step = Step.of(len(self.records), record)
            arrived = [{**asdict(each), "t": self._arrivals[each.id]} for each in step.arrived]
            arrived = [{**each, "prompt_ids": [], "context": []} for each in arrived]
            tokens = [None if token is None else -1 for token in step.token_ids]
            fields = {**asdict(step), "arrived": arrived, "token_ids": tokens}
            self.records.append({"type": "step", **{name: value for name, value in fields.items() if value}})

        execute = engine.core.runner.execute_model

        def executed(output: Any) -> Any:
            self.now += STEP_SECONDS + TOKEN_SECONDS * output.total_num_scheduled_tokens
            return execute(output)

        engine.core.clock, engine.core.runner.execute_model = lambda: self.now, executed
        engine.core.listen(noted)

    def arrived(self, name: str, num_prompt_tokens: int, max_tokens: int, num_seqs: int) -> None:
        self._arrivals[name] = self.microseconds()

    def microseconds(self) -> int:
        return round(self.now * 1e6)

    def stepped(self) -> None:
        pass


def run(name: str, path: Path) -> None:
    """Write the trace of RUNS[name]; the tree that it asks for must be the one that is imported."""
    from folovllm import LLM, SamplingParams

    tree, load, options = RUNS[name]
    engine = LLM(dtype="float32", device="cpu", skip_tokenizer_init=True, **options).engine
    facts = {"version": 4, "made_by": f"folovllm at {tree}", "clock": "simulated", "model": "embedded"}
    facts |= {"device": "cpu", "dtype": "float32", "policy": "fcfs", "texts": False}
    facts |= {"chunked_prefill": "enable_chunked_prefill" in options}
    facts |= {"preemption_mode": options.get("preemption_mode", "auto")}
    side = Inside(engine, facts) if tree == "m6" else Outside(engine, facts)
    calls, left = 0, list(load)
    while left or engine.has_unfinished_requests():
        for request in [request for request in left if request[3] <= calls]:
            left.remove(request)
            request_id, prompt, max_tokens, _, count = request
            params = SamplingParams(n=count, max_tokens=max_tokens, ignore_eos=True, seed=0 if count > 1 else None,
                                    temperature=1.0 if count > 1 else 0.0)  # fmt: skip
            side.arrived(request_id, len(prompt), max_tokens, count)
            engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        engine.step()
        side.stepped()
        calls += 1
    side.records.append({"type": "end", "t": side.microseconds()})
    lines = [json.dumps(_small(record), separators=(",", ":")) + "\n" for record in side.records]
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def _small(record: dict[str, Any]) -> dict[str, Any]:
    """Without empty fields."""
    if record["type"] != "step":
        return record
    return {name: value for name, value in record.items() if value not in ([], {})}


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
