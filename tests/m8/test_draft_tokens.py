"""Room for guesses: what is left over, given back at the end, and never cached before it is known to be right."""

from __future__ import annotations

import pytest

from folovllm.config import SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput, VerifiedDraft
from folovllm.request import Request, Sequence
from folovllm.sampling_params import SamplingParams
from tests.m3.shadow_cache import ShadowCache

BLOCK = 4


class Desk:
    """Plays the engine to a scheduler: what is guessed is 1, and the sequences say 1 as often as `right` says."""

    def __init__(self, num_blocks: int = 40, k: int = 4, caching: bool = False, **config: int) -> None:
        self.kv = KVCacheManager(num_blocks, BLOCK, enable_prefix_caching=caching)
        given = {"max_num_batched_tokens": 16, "max_model_len": 64, "enable_chunked_prefill": True, **config}
        self.scheduler = Scheduler(SchedulerConfig(**given), self.kv, frozenset(), DraftLength(k, None))
        self.shadow = ShadowCache(BLOCK)
        self.seqs: dict[str, Sequence] = {}

    def add(self, name: str, num_prompt: int, **params: object) -> Sequence:
        request = Request(name, None, list(range(2, 2 + num_prompt)), SamplingParams(**params))  # type: ignore[arg-type]
        self.scheduler.add_request(request)
        self.seqs[name] = request.get_seqs()[0]
        return self.seqs[name]

    def launch(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.shadow.execute(output, {name: [1] * count for name, count in output.num_lookahead_tokens.items()})
        return output

    def step(self, right: int = 0) -> dict[str, int]:
        """One step, in which each sequence gains one token, and one more for each of the first `right` guesses. Returns
        how many guesses each had."""
        output = self.launch()
        draws = [seq.num_computed_tokens + count >= seq.get_len()
                 for seq, count in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)]  # fmt: skip
        drafts = {name: VerifiedDraft([1] * count, [1] * min(count, right))
                  for name, count in output.num_lookahead_tokens.items()}  # fmt: skip
        self.scheduler.update_from_output(output, [1 if each else None for each in draws], (), drafts)
        self.scheduler.check_invariants()
        for seq in output.scheduled_seqs:
            assert seq.get_len() - seq.num_computed_tokens == 1 or not seq.get_output_len()
            assert len(seq.block_ids) <= self.kv.blocks_for(seq.get_len())
        return {name.rpartition("-")[0]: count for name, count in output.num_lookahead_tokens.items()}


def test_a_prompt_has_none_and_each_decode_has_k():
    desk = Desk()
    seq = desk.add("a", 6, max_tokens=40)
    assert desk.step() == {}
    assert desk.step() == {"a": 4}
    assert (seq.get_output_len(), seq.num_computed_tokens) == (2, 7)
    assert desk.step(right=4) == {"a": 4}
    assert (seq.get_output_len(), seq.num_computed_tokens) == (7, 12)


def test_blocks_of_guesses_are_given_back():
    desk = Desk()
    seq = desk.add("a", 7, max_tokens=40)
    desk.step()
    output = desk.launch()
    assert (output.num_lookahead_tokens, output.num_scheduled_tokens, len(seq.block_ids)) == ({"a-0": 4}, [1], 3)
    desk.scheduler.update_from_output(output, [1])
    assert len(seq.block_ids) == desk.kv.blocks_for(9)
    assert desk.kv.pool.num_used == 3


def test_no_more_guesses_than_tokens_that_are_wanted():
    desk = Desk()
    desk.add("a", 4, max_tokens=4)
    desk.add("b", 4, max_tokens=2)
    desk.step()
    assert desk.step() == {"a": 2}  # b's second token is its last one
    assert desk.step() == {"a": 1}
    desk = Desk(max_model_len=12)
    desk.add("a", 9, max_tokens=40)
    desk.step()
    assert desk.step() == {"a": 1}


def test_prompts_come_before_guesses():
    desk = Desk(max_num_batched_tokens=8)
    desk.add("a", 3, max_tokens=40)
    desk.step()
    assert desk.step() == {"a": 4}
    desk.add("b", 6, max_tokens=40)
    assert desk.step() == {"a": 1}
    desk.add("c", 30, max_tokens=40)
    desk.launch()
    assert desk.scheduler.schedule().num_lookahead_tokens == {}


def test_what_is_left_is_shared():
    desk = Desk(max_num_batched_tokens=8)
    for name in "abc":
        desk.add(name, 2, max_tokens=40)
    desk.step()
    assert desk.step() == {"a": 2, "b": 2, "c": 1}


def test_no_request_gives_way_for_a_guess():
    desk = Desk(num_blocks=4)
    desk.add("a", 7, max_tokens=9)
    desk.add("b", 7, max_tokens=9)
    desk.step()  # all four blocks are taken: each has a place left
    assert desk.step() == {}
    desk = Desk(num_blocks=5)
    desk.add("a", 5, max_tokens=12)
    desk.add("b", 5, max_tokens=12)
    desk.step()
    assert desk.step() == {"a": 4, "b": 2}  # a has got the last block, b what is left in its own
    assert desk.scheduler.preempter.num_recomputed == 0


def test_guesses_are_not_found_by_others():
    desk = Desk(caching=True)
    seq = desk.add("a", 6, max_tokens=40)
    desk.step()
    desk.step(right=0)  # tokens 8 .. 11 were guesses, all of them wrong
    assert desk.kv.pool.num_cached == 1
    desk.step(right=4)
    assert seq.num_computed_tokens == 12
    assert desk.kv.pool.num_cached == 3


@pytest.mark.parametrize("params", [{"use_beam_search": True, "best_of": 2, "n": 1, "temperature": 0.0}, {"n": 2}])
def test_beams_have_none_and_siblings_have_their_own(params):
    desk = Desk()
    desk.add("a", 4, max_tokens=9, **params)
    output = desk.launch()
    desk.scheduler.update_from_output(output, [1] * len(output.rows))
    assert sum(desk.scheduler.schedule().num_lookahead_tokens.values()) == (8 if params == {"n": 2} else 0)


def test_a_token_that_is_not_known_is_not_guessed_behind():
    desk = Desk()
    seq = desk.add("a", 4, max_tokens=9)
    output = desk.launch()
    assert output.drafts_follow
    desk.scheduler.advance(output)
    seq.data.output_token_ids.append(-1)
    assert desk.scheduler.schedule().num_lookahead_tokens == {}


def test_what_is_counted():
    desk = Desk(k=2)
    desk.add("a", 4, max_tokens=40)
    desk.step()
    for right in (0, 1, 2):
        desk.step(right)
    drafts = desk.scheduler.drafts
    assert (drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_per_pos) == (3, 6, [2, 1])
