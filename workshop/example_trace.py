"""Runs the running example on the tree that it finds, and prints what each step did, as JSON.

    PYTHONPATH=TREE python workshop/example_trace.py m3

Three requests, the same at every milestone. A comes first, B when one step is over, C when four are. What a step does
is watched from outside: the calls of the engine's own scheduler and runner are noted, and nothing is changed by it. M0
has no engine; there the states are set as a caller would set them.

This file stands alone. It runs with the packages of an earlier milestone, so it imports nothing of the workshop.
"""

from __future__ import annotations

import json
import sys
from typing import Any

# name, prompt, its tokens in the embedded model's vocabulary, tokens to generate, steps that are over when it arrives
REQUESTS = [
    ("A", "One day a little fox", 5, 6, 0),
    ("B", "You are a helpful teacher. Answer in one sentence. What is a block table?", 20, 4, 1),
    ("C", "You are a helpful teacher. Answer in one sentence. What is a batch?", 19, 4, 4),
]
MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS, BUDGET = 32, 4, 16, 8

_SLOTS = {"max_num_seqs": NUM_BLOCKS * BLOCK_SIZE // MAX_MODEL_LEN}
_BLOCKS = {"block_size": BLOCK_SIZE, "num_kv_blocks": NUM_BLOCKS}
_WHOLE = {"max_num_batched_tokens": MAX_MODEL_LEN}
SETTINGS: dict[str, dict[str, Any]] = {
    "m1": {},
    "m2": {**_SLOTS, **_WHOLE},
    "m3": {**_BLOCKS, **_WHOLE},
    "m4": {**_BLOCKS, **_WHOLE, "async_scheduling": True},
    "m5": {**_BLOCKS, "max_num_batched_tokens": BUDGET, "async_scheduling": False, "enable_chunked_prefill": True},
    "m6": {
        **_BLOCKS,
        "max_num_batched_tokens": BUDGET,
        "async_scheduling": False,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
    },
}
GUESSES = 3
SETTINGS["m8"] = {  # M7's steps are M6's
    **SETTINGS["m6"],
    "speculative_config": {"method": "draft_model", "num_speculative_tokens": GUESSES},
}


def trace_states() -> dict[str, Any]:
    """M0: one request after the other goes through its states. A step is one token."""
    from folovllm.request import Request, SequenceStatus
    from folovllm.sampling_params import SamplingParams

    made = [
        Request(name, text, list(range(size)), SamplingParams(max_tokens=outputs))
        for name, text, size, outputs, _ in REQUESTS
    ]
    states: list[dict[str, Any]] = []

    def note() -> None:
        seqs = {request.request_id: (request.status, request.get_seqs()[0]) for request in made}
        states.append(
            {name: [status.name, seq.get_prompt_len(), seq.get_output_len()] for name, (status, seq) in seqs.items()}
        )

    note()
    for request in made:
        seq = request.get_seqs()[0]
        seq.transition(SequenceStatus.RUNNING)
        while not seq.is_finished():
            seq.add_token_id(0)
            if seq.get_output_len() == request.sampling_params.max_tokens:
                seq.transition(SequenceStatus.FINISHED_LENGTH_CAPPED)
            note()
    return {"states": states}


class Watch:
    """Notes what the engine's scheduler and runner are asked, in the order in which they are."""

    def __init__(self, engine: Any) -> None:
        self.steps: list[list[dict[str, Any]]] = []
        self.events: list[list[Any]] = []  # ["schedule", step], ["update", step]
        self._finished = 0
        if not hasattr(engine, "scheduler"):
            self._execute, engine.runner.execute_model = engine.runner.execute_model, self._one_after_the_other
            return
        self._schedule, engine.scheduler.schedule = engine.scheduler.schedule, self._scheduled
        self._update, engine.scheduler.update_from_output = engine.scheduler.update_from_output, self._updated

    def _one_after_the_other(self, seq: Any) -> Any:
        length = seq.get_len()
        computed = length - 1 if seq.get_output_len() else 0
        self.steps.append([{"r": _name(seq), "start": computed, "n": length - computed}])
        return self._execute(seq)

    def _scheduled(self) -> Any:
        output = self._schedule()
        parts, drafts = [], getattr(output, "num_lookahead_tokens", {})  # M8: computed behind the scheduled ones
        for seq, count in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            part = {"r": _name(seq), "start": seq.num_computed_tokens, "n": count + drafts.get(seq.seq_id, 0)}
            if hasattr(seq, "block_ids"):
                part["blocks"] = list(seq.block_ids)  # at M2 the one slot that it has
            parts.append(part)
        self.steps.append(parts)
        self.events.append(["schedule", len(self.steps)])
        return output

    def _updated(self, *args: Any) -> Any:
        self._finished += 1
        self.events.append(["update", self._finished])
        return self._update(*args)


def _name(seq: Any) -> str:
    return str(seq.seq_id)[0]


def trace_engine(milestone: str) -> dict[str, Any]:
    """M1 and later: the embedded model in float32, greedy, to the last token."""
    from folovllm import LLM, SamplingParams

    settings = {"max_model_len": MAX_MODEL_LEN, **SETTINGS[milestone]}
    engine = LLM(dtype="float32", device="cpu", **settings).engine
    if "speculative_config" in settings:
        from folovllm.core.draft_length import DraftLength

        # Always so many: by itself the engine takes fewer where its steps turn out to be dear on this machine.
        engine.core.scheduler.drafts.length = DraftLength(GUESSES, costs=None)
    watch = Watch(engine)
    arrived: dict[str, int] = {}
    outputs: dict[str, list[int]] = {}
    calls = 0
    while len(arrived) < len(REQUESTS) or engine.has_unfinished_requests():
        for name, text, _, count, after in REQUESTS:
            if after == calls:
                params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
                engine.add_request(name, text, params)
                arrived[name] = calls + 1
        for output in engine.step():
            assert len(output.prompt_token_ids) == next(r[2] for r in REQUESTS if r[0] == output.request_id)
            outputs[output.request_id] = list(output.outputs[0].token_ids)
        calls += 1
    trace = {"settings": settings, "arrived": arrived, "steps": [s for s in watch.steps if s], "outputs": outputs}
    if milestone == "m4":
        trace["events"] = watch.events
    return trace


def trace(milestone: str) -> dict[str, Any]:
    return trace_states() if milestone == "m0" else trace_engine(milestone)


if __name__ == "__main__":
    print(json.dumps(trace(sys.argv[1])))
