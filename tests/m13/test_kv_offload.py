"""Which block has which place in which tier: decided in core, and held against a shadow of all of them."""

from __future__ import annotations

import random

import pytest

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from tests.m13.support import TieredDesk

A = [1, 2, 3, 4, 5, 6, 7, 8, 9]
"""Two full blocks, and a token more."""


def served(desk: TieredDesk, *names: str) -> TieredDesk:
    while not all(desk.requests[name].is_finished() for name in names):
        desk.step()
    if desk.offload.has_stores:
        output = SchedulerOutput()
        desk.offload.add_moves(output, desk.kv.pool)
        desk.shadow.execute(output)
        desk.offload.moved(output)
    return desk


def with_a_in_host(num_blocks: int = 40, **more: object) -> TieredDesk:
    desk = TieredDesk(num_blocks, **more)  # type: ignore[arg-type]
    desk.add("a", A, max_tokens=1)
    served(desk, "a").forget_pool()
    return desk


def test_a_block_is_stored_when_it_becomes_full() -> None:
    desk = TieredDesk()
    desk.add("a", A, max_tokens=5)
    output = desk.schedule()
    assert output.blocks_to_swap_out == []
    desk.update(output)
    output = desk.schedule()
    table = desk.requests["a"].get_seqs()[0].block_ids
    assert [block for block, _ in output.blocks_to_swap_out] == table[:2]
    assert {host for _, host in output.blocks_to_swap_out} < set(desk.offload.blocks)


def test_what_the_pool_has_evicted_is_a_prefix_hit() -> None:
    desk = with_a_in_host()
    desk.add("again", A, max_tokens=1)
    output = desk.schedule()
    assert len(output.blocks_to_swap_in) == 2
    assert output.num_scheduled_tokens == [1]
    assert desk.cached("again") == desk.kv.num_external_hits == 8


def test_what_one_request_brings_in_another_finds_in_the_same_step() -> None:
    desk = with_a_in_host()
    desk.add("b", A, max_tokens=1)
    desk.add("c", [*A[:8], 50, 51], max_tokens=1)
    output = desk.schedule()
    assert len(output.blocks_to_swap_in) == 2
    assert desk.cached("b") == desk.cached("c") == 8


def test_what_was_found_is_held_while_more_is_looked_for() -> None:
    """Of 3 blocks two hold another prompt's beginning; a third comes in, and must not take the place of the first."""
    desk = with_a_in_host(3)
    desk.add("first", [*A[:4], 30], max_tokens=1)
    served(desk, "first")
    desk.add("again", A, max_tokens=1)
    desk.schedule()
    assert desk.cached("again") == 8


def test_what_is_gone_when_its_request_is_let_in_is_no_hit() -> None:
    desk = with_a_in_host()
    request = desk.add("again", A, max_tokens=1)
    (seq,) = request.get_seqs()
    desk.kv.get_computed_blocks(request, seq)  # and there is no room for the rest
    desk.kv.free(seq)
    desk.forget_pool()
    desk.offload.clear()
    served(desk, "again")
    assert (desk.kv.num_hits, desk.kv.num_external_hits) == (0, 0)


def test_a_load_is_dropped_when_its_block_was_handed_out_again() -> None:
    """Block 3 has been promised to A's prefix; A is not let in, and the sequence that comes back from the swap space
    takes it. The load would be the second to write to it."""
    desk = with_a_in_host(4, num_swap_blocks=8, mode="swap")
    kv = desk.kv
    desk.add("s", [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31], max_tokens=4)
    desk.update(desk.schedule())
    (swapped,) = desk.requests["s"].get_seqs()
    out = kv.swap_out([swapped])
    assert out is not None
    desk.forget_pool()
    request = Request("again", None, A, SamplingParams())
    (seq,) = request.get_seqs()
    kv.get_computed_blocks(request, seq)
    promised = list(seq.block_ids)
    assert len(promised) == 2
    kv.free(seq)
    back = kv.swap_in([swapped])
    assert back is not None
    taken = {block for _, block in back} & set(promised)
    assert taken
    output = SchedulerOutput(blocks_to_swap_in=back)
    desk.offload.add_moves(output, kv.pool)
    targets = [block for _, block in output.blocks_to_swap_in]
    assert len(targets) == len(set(targets))
    assert {block for host, block in output.blocks_to_swap_in if host in desk.offload.blocks} == {*promised} - taken


def test_a_prompt_that_takes_the_rest_of_a_step_takes_what_was_promised_to_one_that_waits() -> None:
    desk = with_a_in_host(6, budget=32, threshold=None)
    desk.add("long", list(range(30, 54)), max_tokens=1)
    desk.add("again", A, max_tokens=1)
    output = desk.schedule()
    assert output.num_scheduled_tokens == [24]
    assert output.blocks_to_swap_in == []
    desk.update(output)
    served(desk, "again")


def test_a_host_block_that_a_load_reads_is_not_written_before() -> None:
    """With room for two blocks in host memory: what becomes full while A's are to come in finds no place."""
    desk = with_a_in_host(40, host_blocks=2)
    request = Request("again", None, A, SamplingParams())
    (seq,) = request.get_seqs()
    desk.kv.get_computed_blocks(request, seq)
    desk.offload.store(b"new", b"", (1, 2, 3, 4), 30)
    output = SchedulerOutput()
    desk.offload.add_moves(output, desk.kv.pool)
    assert output.blocks_to_swap_out == []
    assert len(output.blocks_to_swap_in) == 2
    desk.offload.store(b"new", b"", (1, 2, 3, 4), 30)
    assert desk.offload.has_stores


def test_the_block_used_longest_ago_makes_room() -> None:
    desk = with_a_in_host(40, host_blocks=3)
    b, c = [60, 61, 62, 63, 64], [70, 71, 72, 73, 74]
    for name, prompt in (("b", b), ("a again", A), ("c", c)):
        desk.add(name, prompt, max_tokens=1)
        served(desk, name)
    desk.forget_pool()
    for name, prompt, found in (("c2", c, 4), ("a2", A, 8), ("b2", b, 0)):
        desk.add(name, prompt, max_tokens=1)
        served(desk, name)
        assert (desk.cached(name), name) == (found, name)


def test_a_hash_is_believed_only_with_its_tokens_and_its_parent() -> None:
    offload = with_a_in_host().offload
    (first, known), (second, behind) = offload.known.items()
    assert offload.find(first, b"", A[:4]) == known
    assert offload.find(second, first, A[4:8]) == behind
    assert offload.find(second, b"", A[4:8]) is None
    assert offload.find(first, b"", [1, 2, 3, 5]) is None


def test_a_reset_reaches_every_tier() -> None:
    desk = with_a_in_host(tier=True)
    assert desk.tier is not None
    desk.tier.work()
    desk.reset()
    assert desk.tier.kept == {}
    desk.add("again", A, max_tokens=1)
    desk.update(desk.schedule())
    assert desk.cached("again") == 0


def only_in_the_tier(**more: object) -> TieredDesk:
    desk = with_a_in_host(tier=True, **more)
    assert desk.tier is not None
    desk.tier.work()
    desk.offload.poll()
    desk.offload.clear()
    return desk


def test_a_request_waits_for_its_blocks_and_others_pass_it() -> None:
    desk = only_in_the_tier()
    assert desk.tier is not None
    desk.add("again", A, max_tokens=1)
    desk.add("b", [60, 61, 62], max_tokens=3)
    assert desk.step() == {"b": 3}
    desk.tier.work(1)
    assert desk.step() == {"b": 1}
    desk.tier.work()
    assert desk.step() == {"b": 1, "again": 1}
    assert desk.cached("again") == 8
    assert desk.offload.num_hits == 2


def test_with_nothing_else_to_do_a_step_waits_for_the_tier() -> None:
    desk = only_in_the_tier()
    desk.add("again", A, max_tokens=1)
    assert desk.step() == {"again": 1}


def test_what_cannot_be_read_is_computed_and_stored_anew() -> None:
    """The file is there when it is stored again, and that stops nothing."""
    desk = only_in_the_tier()
    assert desk.tier is not None
    desk.tier.refused = set(desk.tier.kept)
    desk.add("again", A, max_tokens=1)
    served(desk, "again")
    assert desk.cached("again") == 0
    desk.tier.refused = set()
    desk.tier.work()
    assert len(desk.tier.kept) == 2
    assert desk.offload.num_hits == 0


def test_a_host_block_is_the_tiers_until_its_job_ends() -> None:
    """Two host blocks are being written to the tier: what becomes full meanwhile has no place."""
    desk = with_a_in_host(tier=True, host_blocks=2)
    assert desk.tier is not None
    assert len(desk.tier.jobs) == 2
    desk.add("b", [60, 61, 62, 63, 64], max_tokens=1)
    served(desk, "b")
    assert len(desk.tier.jobs) == 2
    desk.tier.work()
    desk.offload.poll()
    desk.add("c", [70, 71, 72, 73, 74], max_tokens=1)
    served(desk, "c")
    assert len(desk.tier.jobs) == 1


def test_blocks_that_wait_to_be_read_do_not_push_out_the_beginning_of_their_prompt() -> None:
    """Host memory has two places, and A's first block one of them: of the two that the tier alone has, one is read."""
    desk = only_in_the_tier(host_blocks=2)
    assert desk.tier is not None
    longer = [*A[:8], 80, 81, 82, 83, 84]
    desk.add("longer", longer, max_tokens=1)
    served(desk, "longer")
    desk.tier.work()
    desk.offload.poll()
    desk.forget_pool()
    desk.add("again", longer, max_tokens=1)
    served(desk, "again")
    assert desk.cached("again") is not None
    desk.scheduler.check_invariants()


def test_of_one_prompt_the_beginning_is_stored_last() -> None:
    """A folder forgets the oldest first, and an end without its beginning is of no use."""
    desk = with_a_in_host(tier=True)
    assert desk.tier is not None
    assert [host.token_ids for _, host, _ in desk.tier.jobs] == [(5, 6, 7, 8), (1, 2, 3, 4)]


@pytest.mark.parametrize("seed", range(12))
def test_no_sequence_ever_reads_what_is_not_its_own(seed: int) -> None:
    """Few blocks in every tier, jobs that end late and in part, aborts, resets, preemption."""
    rng = random.Random(seed)
    desk = TieredDesk(
        rng.choice([7, 9, 14]), rng.choice([0, 3, 9]), rng.choice([1, 3, 8, 30]), tier=rng.random() < 0.7,
        budget=rng.choice([6, 20]), threshold=rng.choice([None, 0, 3]), partial=rng.choice([1, 3]),
        mode=rng.choice(["auto", "recompute", "swap"]), seed=seed, max_model_len=24,
    )  # fmt: skip
    bases = [[rng.randrange(1, 4) for _ in range(20)] for _ in range(3)]
    while len(desk.requests) < 40 or desk.scheduler.has_unfinished_requests():
        while len(desk.requests) < 40 and rng.random() < 0.5:
            own = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]
            prompt = [*rng.choice(bases)[: rng.randrange(20)], *own]
            desk.add(str(len(desk.requests)), prompt, n=rng.choice([1, 1, 2]), max_tokens=rng.randrange(1, 6))
        output = desk.schedule()
        if desk.tier is not None and rng.random() < 0.7:
            desk.tier.refused = set(rng.sample(sorted(desk.tier.kept), len(desk.tier.kept) // 9))
            desk.tier.work(rng.randrange(5))
        if desk.requests and rng.random() < 0.1:
            desk.abort(rng.choice(list(desk.requests)))
        if rng.random() < 0.04:
            desk.reset()
        desk.update(output)
        desk.scheduler.check_invariants()
    assert desk.kv.num_hits > 0
