"""Shared by M5's tests: a desk whose scheduler cuts prompts into chunks, which looks at every step it is given."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from folovllm import LLMEngine
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.outputs import RequestOutput
from folovllm.request import Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams
from tests.m2.support import assert_idle, make_engine
from tests.m3.support import EOS, PagedDesk

RUNNING = SequenceStatus.RUNNING


class ChunkDesk(PagedDesk):
    """budget: tokens in a step; threshold and partial: long_prefill_token_threshold, max_num_partial_prefills."""

    def __init__(
        self,
        num_blocks: int = 40,
        block_size: int = 4,
        num_swap_blocks: int = 0,
        *,
        budget: int = 8,
        threshold: int | None = 0,
        partial: int = 1,
        chunks: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(num_blocks, block_size, num_swap_blocks, max_num_batched_tokens=budget, **more)
        self.limits = replace(
            self.limits,
            enable_chunked_prefill=chunks,
            long_prefill_token_threshold=threshold,
            max_num_partial_prefills=partial,
        )
        self.scheduler = Scheduler(self.limits, self.kv, frozenset([EOS]))
        self.scheduler.watermark = 0
        self.largest_chunk, self.partial = threshold or budget, partial

    def schedule(self) -> SchedulerOutput:
        """The next step, carried out on the shadow, and held against what a step may be."""
        before = {seq for request in self.scheduler.running for seq in request.get_seqs(RUNNING)}
        decoding = [seq for seq in before if lacks(seq) == 1 and not seq.sampling_params.use_beam_search]
        output = super().schedule()
        sizes = dict(zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True))
        assert len(sizes) == len(output.scheduled_seqs), "a sequence computes twice in one step"
        assert all(0 < size <= self.largest_chunk for size in sizes.values())
        assert all(0 < size <= lacks(seq) for seq, size in sizes.items())
        for seq in decoding:
            assert sizes.get(seq) == 1 or seq.status is not RUNNING, f"{seq.seq_id} is left out, and was not preempted"
        for parent, _ in output.forks:
            assert parent.num_computed_tokens + sizes[parent] == parent.get_prompt_len(), "forked before its end"
        # Those that come back from the swap space go on, however many they are.
        new = [seq for seq, n in sizes.items() if seq not in before and not seq.num_computed_tokens and rest(seq, n)]
        unended = [seq for seq in {*before, *new} if seq.status is RUNNING and rest(seq, sizes.get(seq, 0)) > 0]
        assert not new or len(unended) <= self.partial, "too many prompts are begun at once"
        return output


def lacks(seq: Sequence) -> int:
    """Tokens of it that are to be computed yet."""
    return seq.get_len() - seq.num_computed_tokens


def rest(seq: Sequence, size: int) -> int:
    """How much is left of a prompt, or of what is recomputed, after a step that computes `size` tokens of it. The last
    token of a beam is none of it: that one is for all beams together."""
    together = seq.sampling_params.use_beam_search and seq.get_output_len() > 0
    return lacks(seq) - size - together if lacks(seq) > 1 else 0


def growing_beside_a_long_prompt(mode: str = "recompute", n: int = 1, max_tokens: int = 3) -> ChunkDesk:
    """`a` decodes; beside it 15 tokens come in by threes, for which 4 blocks of 6 were free when they began."""
    desk = ChunkDesk(6, num_swap_blocks=8, budget=4, mode=mode)
    desk.add("a", 4, max_tokens=13)
    assert desk.step() == {"a": 4}
    desk.add("long", 15, n=n, max_tokens=max_tokens)
    assert [desk.step() for _ in range(4)] == [{"a": 1, "long": 3}] * 4
    return desk


def preempted_on_the_way(mode: str, n: int = 1, max_tokens: int = 3) -> ChunkDesk:
    """... until `a` has taken one of them, and then one more."""
    desk = growing_beside_a_long_prompt(mode, n, max_tokens)
    assert [desk.step() for _ in range(4)] == [{"a": 1}] * 4
    assert desk.scheduler.preempter.num_recomputed + desk.scheduler.preempter.num_swapped == 0
    assert desk.step() == {"a": 1}
    assert desk.scheduler.preempter.num_recomputed + desk.scheduler.preempter.num_swapped == 1
    return desk


def chunked_engine(folder: Path | str, **kwargs: Any) -> LLMEngine:
    """A float32 engine without a tokenizer on the CPU, with chunked prefill unless told otherwise; any field of the
    configs by its name."""
    return make_engine(folder, **{"skip_tokenizer_init": True, "enable_chunked_prefill": True, **kwargs})


def serve(engine: LLMEngine, asked: list[tuple[list[int], SamplingParams]], seed: int = 0) -> list[RequestOutput]:
    """They come one by one while others run; the engine's books are looked through after every step."""
    rng, done = random.Random(seed), {}
    coming = list(enumerate(asked))
    while coming or engine.has_unfinished_requests():
        if coming and rng.random() < 0.5:
            number, (prompt, params) = coming.pop(0)
            engine.add_request(str(number), prompt, params)
        done |= {output.request_id: output for output in engine.step() if output.finished}
        engine.scheduler.check_invariants()
    assert_idle(engine)
    return [done[str(number)] for number in range(len(asked))]


def token_ids(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]
