"""The engine's CUDA path on a stand-in: every kind of request says what it says on the CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.worker.batch_sampler import BatchSampler
from tests.fake_cuda import FakeCuda
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import PROMPTS, make_engine, serve, serve_on_cpu, waits_of_launches

GREEDY = SamplingParams(temperature=0, max_tokens=10)
KINDS = {
    "greedy": SamplingParams(temperature=0, max_tokens=5),
    "logprobs": SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1),
    "processed logprobs": SamplingParams(seed=1, max_tokens=4, logprobs=2, logprobs_mode="processed", top_k=9),
    "penalties": SamplingParams(temperature=0, max_tokens=5, repetition_penalty=1.3, presence_penalty=0.5),
    "bias": SamplingParams(temperature=0, max_tokens=4, logit_bias={5: 3.0, 7: -2.0}),
    "allowed": SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[5, 6, 7, 8]),
    "min_tokens": SamplingParams(temperature=0, max_tokens=5, min_tokens=3, stop_token_ids=list(range(0, 250, 2))),
    "temperature": SamplingParams(temperature=0.6, seed=2, max_tokens=4),
    "top_k": SamplingParams(temperature=1.0, seed=3, top_k=20, max_tokens=4),
    "top_p": SamplingParams(temperature=1.5, seed=4, top_p=0.9, max_tokens=4),
    "min_p": SamplingParams(temperature=1.5, seed=5, min_p=0.01, max_tokens=4),
    "n": SamplingParams(n=3, temperature=1.0, seed=6, max_tokens=4),
}


@pytest.fixture(params=["torch", pytest.param("kernel", marks=pytest.mark.exhaustive)])
def drawn_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines draw in the same way, or the same seed would mean other tokens: with the kernel, on the CPU in
    Triton's interpreter, or with torch."""
    make = BatchSampler.__init__

    def make_like_the_other(self: BatchSampler, *args: Any, **more: Any) -> None:
        make(self, *args, **more)
        self.uses_kernel = request.param == "kernel"

    monkeypatch.setattr(BatchSampler, "__init__", make_like_the_other)


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_by")
def test_a_dozen_kinds_of_request_in_one_batch(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    requests = [(PROMPTS[number % 4], params) for number, params in enumerate(KINDS.values())]
    settings = {"max_num_seqs": 16, "num_kv_blocks": 90}
    engine = make_engine(small_oracle, **settings)
    fake_cuda.reset_counts()
    with waits_of_launches(engine, fake_cuda) as waits:
        told = serve(engine, requests)
    assert told == serve_on_cpu(small_oracle, requests, **settings)
    assert waits == []
    assert fake_cuda.launches["graph"] >= 3
    assert_idle(engine)


def test_beams(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    requests = [(PROMPTS[1], SamplingParams(use_beam_search=True, n=2, temperature=0, max_tokens=4))]
    engine = make_engine(small_oracle)
    with waits_of_launches(engine, fake_cuda) as waits:
        told = serve(engine, requests)
    assert told == serve_on_cpu(small_oracle, requests)
    assert waits == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings", [{"preemption_mode": "swap"}, {"preemption_mode": "recompute", "enforce_eager": True}], ids=str
)
def test_preempted_sequences_go_on_as_if_nothing_had_been(
    small_oracle: Oracle, fake_cuda: FakeCuda, settings: dict[str, object]
) -> None:
    engine = make_engine(small_oracle, num_kv_blocks=10, **settings)
    fake_cuda.reset_counts()
    with waits_of_launches(engine, fake_cuda) as waits:
        told = serve(engine, [(prompt, GREEDY) for prompt in PROMPTS])
    assert waits == []
    tokens = [one["outputs"][0]["token_ids"] for one in told]
    assert tokens == [small_oracle.greedy(prompt, 10) for prompt in PROMPTS]
    assert engine.stats().preemptions > 1
    assert bool(fake_cuda.launches["graph"]) == ("enforce_eager" not in settings)


@pytest.mark.exhaustive
def test_a_batch_draws_inside_of_its_graph(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    """Greedy rows beside seeded ones, with and without log-probabilities: in a replay nothing is launched to draw, and
    the tokens are those of an engine without graphs."""
    kinds = [KINDS["greedy"], KINDS["temperature"], KINDS["top_k"], SamplingParams(seed=7, max_tokens=5, logprobs=1)]
    requests = list(zip(PROMPTS, kinds, strict=True))
    engine = make_engine(small_oracle)
    outside: list[Counter[str]] = []
    launch = engine.runner.execute_model

    def watched(scheduled: Any) -> Any:
        fake_cuda.reset_counts()
        step = launch(scheduled)
        if fake_cuda.launches["graph"]:
            outside.append(Counter(fake_cuda.launches))
        return step

    engine.runner.execute_model = watched  # type: ignore[method-assign]
    told = serve(engine, requests)
    assert told == serve(make_engine(small_oracle, enforce_eager=True), requests)
    assert len(outside) >= 3
    for launches in outside:
        assert not {"argmax", "_sample_kernel", "exponential_", "max"} & launches.keys()


@pytest.mark.exhaustive
def test_a_seed_means_the_same_tokens_in_a_graph_and_in_any_step_before_it(
    small_oracle: Oracle, fake_cuda: FakeCuda
) -> None:
    """Rows change their places and settings from step to step: others end before them and come after."""
    engine = make_engine(small_oracle, async_scheduling=True)
    wanted = [SamplingParams(temperature=2.0, top_k=50, seed=seed, max_tokens=3 + seed) for seed in range(4)]
    together = serve(engine, list(zip(PROMPTS, wanted, strict=True)))
    for number, params in enumerate(wanted):
        assert serve(engine, [(PROMPTS[number], params)]) == [together[number]]
    assert len({tuple(one["outputs"][0]["token_ids"][:3]) for one in together}) > 1


@pytest.mark.exhaustive
def test_a_fork_draws_with_its_own_seed_behind_a_replay(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    """A prompt of one token is a step of one token, and a parent's logits are drawn from three times."""
    request = ([5], SamplingParams(n=3, temperature=2.0, seed=6, max_tokens=4))
    engine = make_engine(small_oracle)
    fake_cuda.reset_counts()
    (told,) = serve(engine, [request])
    assert fake_cuda.launches["graph"] == 4
    assert [told] == serve(make_engine(small_oracle, enforce_eager=True), [request])
    assert len({tuple(output["token_ids"]) for output in told["outputs"]}) == 3
