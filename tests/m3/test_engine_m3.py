"""The engine when its cache is small: what such engines have got wrong; and two hundred streams at a time."""

from __future__ import annotations

import pytest

from folovllm import LLMEngine, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.helpers import names, thinned
from tests.m1.support import params, run, scripted
from tests.m2.support import assert_idle, counting_forwards, make_engine
from tests.m3.oracle import Oracle

TEXTS = ["one", "twenty-two", "three hundred and thirty-three"]


@register_logits_processor("m3_fails")
class Fails(LogitsProcessor):
    def apply(self, logits):
        raise RuntimeError("its own fault")


def assert_pools_full(engine: LLMEngine) -> None:
    assert_idle(engine)
    kv = engine.scheduler.kv
    assert (kv.pool.num_free, kv.swap_pool.num_free) == (kv.pool.num_blocks, kv.swap_pool.num_blocks)


@pytest.mark.parametrize(("max_num_seqs", "mode"), thinned({"1": 1, "2": 2, "8": 8}, names(["recompute", "swap"])))
def test_n_sequences_of_different_lengths_all_end(text_model_folder, max_num_seqs: int, mode: str) -> None:
    engine = make_engine(
        text_model_folder, num_kv_blocks=14, block_size=3, preemption_mode=mode, max_num_seqs=max_num_seqs
    )
    for name in "ab":
        engine.add_request(name, "hello", scripted(*TEXTS, n=3))
    done, _ = run(engine)
    for name in "ab":
        assert [completion.text for completion in done[name].outputs] == TEXTS
        assert [completion.finish_reason for completion in done[name].outputs] == ["stop"] * 3
    assert_pools_full(engine)


def test_the_prompt_of_n_sequences_goes_through_the_model_once(oracle: Oracle) -> None:
    llm = oracle.make_llm()
    with counting_forwards(llm.engine) as sizes:
        llm.generate([1] * 50, SamplingParams(n=8, max_tokens=3, seed=1), use_tqdm=False)
    assert sizes == [50, 8, 8]


def test_identical_prompts_in_one_step_have_blocks_of_their_own(oracle: Oracle) -> None:
    # Without a prefix cache, which would find out that they are equal.
    engine = oracle.make_llm(num_kv_blocks=60, block_size=4, enable_prefix_caching=False).engine
    for i in range(8):
        engine.add_request(str(i), [3, 1, 4, 1, 5, 9], params(temperature=0, max_tokens=9))
    engine.step()
    assert (engine.stats().kv_blocks_used, engine.stats().kv_blocks_shared) == (16, 0)
    done = run(engine)[0]
    assert [done[str(i)].outputs[0].token_ids for i in range(8)] == [oracle.greedy([3, 1, 4, 1, 5, 9], 9)] * 8


@pytest.mark.parametrize("steps", [0, 1, 4, 9])
def test_an_abort_inside_a_step_frees_shared_and_swapped_blocks_once(oracle: Oracle, steps: int) -> None:
    """Nobody is spared: all requests are aborted after the model has run, before their tokens are taken in."""
    engine = oracle.make_llm(num_kv_blocks=10, block_size=4, preemption_mode="swap").engine
    for i in range(4):
        engine.add_request(str(i), [i + 1] * 6, SamplingParams(n=2, seed=1, max_tokens=20))
    for _ in range(steps):
        engine.step()
    execute = engine.runner.execute_model

    def and_abort(scheduled):
        result = execute(scheduled)
        for i in (3, 1, 0, 2, 1):
            engine.abort_request(str(i))
        return result

    engine.runner.execute_model = and_abort
    assert engine.step() == []
    del engine.runner.execute_model
    assert_pools_full(engine)


def test_a_request_whose_own_code_fails_gives_all_its_forks_back(text_model_folder) -> None:
    engine = make_engine(text_model_folder, num_kv_blocks=20, block_size=4)
    engine.add_request("bad", "hello", params(n=3, extra_args={"m3_fails": True}))
    engine.add_request("good", "hello", scripted(*TEXTS[:2], n=2))
    with pytest.raises(RuntimeError, match="its own fault"):
        engine.step()
    engine.scheduler.check_invariants()
    assert [completion.text for completion in run(engine)[0]["good"].outputs] == TEXTS[:2]
    assert_pools_full(engine)


def test_a_stop_string_in_one_of_n_leaves_the_others_their_blocks(text_model_folder) -> None:
    engine = make_engine(text_model_folder, num_kv_blocks=30, block_size=4)
    engine.add_request("r", "hello", scripted("a STOP b", "a long text without it", "STOP", n=3, stop="STOP"))
    outputs = run(engine)[0]["r"].outputs
    assert [completion.text for completion in outputs] == ["a ", "a long text without it", ""]
    assert [completion.stop_reason for completion in outputs] == ["STOP", None, "STOP"]
    assert_pools_full(engine)


def test_a_name_is_free_again_when_its_preempted_owner_is_aborted(oracle: Oracle) -> None:
    engine = oracle.make_llm(num_kv_blocks=8, block_size=4, preemption_mode="swap").engine
    for name in "abc":
        engine.add_request(name, [7] * 6, SamplingParams(temperature=1, seed=5, max_tokens=20))
    while not engine.stats().swapped:
        engine.step()
    (gone,) = {request.request_id for request in engine.scheduler.swapped}
    engine.abort_request(gone)
    engine.add_request(gone, [7] * 6, SamplingParams(temperature=1, seed=5, max_tokens=20))
    done = run(engine)[0]
    assert len({tuple(output.outputs[0].token_ids) for output in done.values()}) == 1  # its generator began anew
    assert_pools_full(engine)


def test_streams_say_the_same_through_preemptions(oracle: Oracle) -> None:
    engine = oracle.make_llm(num_kv_blocks=10, block_size=4).engine
    prompts = [[i + 1] * 5 for i in range(4)]
    streams = [engine.generate_stream(prompt, SamplingParams(temperature=0, max_tokens=18)) for prompt in prompts]
    said: list[list[int]] = [[] for _ in prompts]
    for i, stream in enumerate(streams):
        for output in stream:
            said[i] += output.outputs[0].token_ids
    assert said == [oracle.greedy(prompt, 18) for prompt in prompts]
    assert engine.stats().preemptions > 0
    assert_pools_full(engine)


def test_priorities_choose_who_is_preempted(oracle: Oracle) -> None:
    """The urgent one comes last, finds the cache full when it grows, and still ends first."""
    engine = oracle.make_llm(num_kv_blocks=9, block_size=4, policy="priority", max_num_seqs=4).engine
    for i, priority in enumerate([5, 4, 3, -1]):
        engine.add_request(str(i), [i + 1] * 6, params(temperature=0, max_tokens=16), priority=priority)
    done, seen = run(engine)
    assert next(output.request_id for output in seen if output.finished) == "3"
    assert engine.stats().preemptions > 0
    for i in range(4):
        assert done[str(i)].outputs[0].token_ids == oracle.greedy([i + 1] * 6, 16)
