"""The engine draws every row that the sampling kernel can draw by it, with the same tokens in any company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.sample.draw import NO_TOKEN, NOT_FINITE
from folovllm.sample.groups import group_rows, sample_groups
from folovllm.sample.gumbel import GumbelParams, GumbelRows, host_params, takes_raw_logits
from folovllm.sample.kernels import sampler as kernel
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.sample.sampler import Sampler
from tests.helpers import make_hf_folder, some
from tests.m1.sampling_reference import make_row

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="makes a CPU engine take the kernel")

PROMPTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    folder = make_hf_folder(tmp_path_factory.mktemp("model"))
    llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", device="cpu")
    llm.engine.runner.sampling.uses_kernel = True
    return llm


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each launch had."""
    log: list[int] = []
    original = kernel.sample

    def noted(logits, *args, **kwargs):
        log.append(len(logits))
        return original(logits, *args, **kwargs)

    monkeypatch.setattr(kernel, "sample", noted)
    return log


def tokens(llm: LLM, prompts: list[list[int]], settings: list[SamplingParams]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, settings)]


def test_one_launch_draws_greedy_seeded_and_filtered_rows(llm: LLM, launches: list[int]) -> None:
    settings = [
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True),
        SamplingParams(seed=3, max_tokens=3, ignore_eos=True),
        SamplingParams(top_k=5, top_p=0.9, max_tokens=3, ignore_eos=True),
        SamplingParams(min_p=0.1, seed=4, temperature=2.0, max_tokens=3, ignore_eos=True),
    ]
    together = tokens(llm, PROMPTS, settings)
    assert launches == [4, 4, 4]
    for place in (0, 1, 3):
        assert tokens(llm, [PROMPTS[place]], [settings[place]]) == [together[place]]


def test_a_row_that_the_graph_cannot_draw_does_not_change_its_neighbours(llm: LLM) -> None:
    seeded = SamplingParams(seed=9, temperature=1.5, max_tokens=4, ignore_eos=True)
    biased = SamplingParams(logit_bias={7: 100.0}, max_tokens=4, ignore_eos=True)
    reporting = SamplingParams(temperature=0, logprobs=2, max_tokens=4, ignore_eos=True)
    alone = tokens(llm, PROMPTS[:1], [seeded])
    outputs = llm.generate(PROMPTS[:3], [seeded, biased, reporting])
    assert outputs[0].outputs[0].token_ids == alone[0]
    assert outputs[1].outputs[0].token_ids == [7] * 4
    report = outputs[2].outputs[0]
    assert [next(iter(step)) for step in report.logprobs] == report.token_ids
    assert outputs[0].outputs[0].logprobs is None


def test_seeds_differ_and_an_unseeded_row_follows_torchs_generator(llm: LLM) -> None:
    def draw(seed: int | None) -> list[list[int]]:
        return tokens(llm, PROMPTS[:1], [SamplingParams(seed=seed, temperature=3.0, max_tokens=6, ignore_eos=True)])

    assert draw(1) != draw(2)
    torch.manual_seed(0)
    first, second = draw(None), draw(None)
    assert first != second
    torch.manual_seed(0)
    assert draw(None) == first


def test_each_of_n_sequences_has_noise_of_its_own(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, temperature=3.0, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate(PROMPTS[:1], [params])
    assert len({tuple(each.token_ids) for each in output.outputs}) == 3


def test_who_draws_from_logits_as_they_came_follows_from_a_rows_own_parameters() -> None:
    for racing in ({}, {"temperature": 0}, {"seed": 1}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}, {"logprobs": 1}):
        assert takes_raw_logits(make_row(SamplingParams(**racing)))
    for other in ({"logit_bias": {1: 1.0}}, {"presence_penalty": 0.5}, {"min_tokens": 2}):
        assert not takes_raw_logits(make_row(SamplingParams(**other)))


def test_settings_as_the_kernel_reads_them() -> None:
    rows = [SamplingParams(), SamplingParams(temperature=0.0, top_k=7), SamplingParams(logprobs=1, top_p=0.5)]
    packed = host_params([make_row(p) for p in rows], [2**63, -1, 5], 50)
    temperature, top_p, min_p = (packed[line].view(np.float64).tolist() for line in (0, 2, 3))
    assert temperature == [1.0, 0.0, 1.0]
    assert packed[1].tolist() == [50, 7, 50]
    assert top_p == [float("inf"), float("inf"), 0.5]
    assert min_p == [0.0] * 3
    assert packed[4].tolist() == [-(2**63), -1, 5]


SEEDED = {
    "full": {"temperature": 1.5},
    "top_k": {"temperature": 2.0, "top_k": 20},
    "top_p": {"temperature": 2.0, "top_p": 0.9},
    "min_p": {"temperature": 2.0, "min_p": 0.01},
    "greedy": {"temperature": 0.0},
}
BESIDE = {
    "raw": {"logprobs": 2},
    "processed": {"logprobs": 2, "logprobs_mode": "processed"},
    "biased by nothing": {"logit_bias": {7: 0.0}},
    "all allowed": {"allowed_token_ids": list(range(256)), "logprobs": 1},
    "a tiny penalty": {"presence_penalty": 1e-6},
}


@pytest.mark.parametrize("kind", some(SEEDED))
def test_a_seed_means_the_same_tokens_whatever_is_asked_for_beside_them(llm: LLM, kind: str) -> None:
    plain = SamplingParams(**SEEDED[kind], seed=11, max_tokens=4, ignore_eos=True)
    wanted = [replace(plain, **more) for more in BESIDE.values()]
    expected, *others = llm.generate([PROMPTS[0]] * (1 + len(wanted)), [plain, *wanted])
    for output in others:
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    for output in others[:2]:
        steps = zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
        assert all(step[token].logprob > -20 for token, step in steps)


@pytest.mark.exhaustive
def test_processed_logprobs_describe_what_the_kernel_drew_from(llm: LLM) -> None:
    params = SamplingParams(top_k=3, temperature=2.0, seed=1, logprobs=5, logprobs_mode="processed", max_tokens=3)
    (output,) = llm.generate(PROMPTS[:1], [params])
    for step in output.outputs[0].logprobs:
        told = sorted((entry.logprob for entry in step.values()), reverse=True)
        assert sum(np.exp(told)) == pytest.approx(1.0, abs=1e-5)
        assert sum(np.isfinite(told)) == 3


@register_logits_processor("m4_fails")
class Fails(LogitsProcessor):
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("boom")


def test_a_processor_that_fails_does_not_change_what_its_neighbours_draw(llm: LLM) -> None:
    """One of them is edited, too, and stands behind the one that fails."""
    company = [SamplingParams(logit_bias={7: 2.0}, seed=3, temperature=2.0, max_tokens=3, ignore_eos=True, logprobs=1)]
    company.append(SamplingParams(seed=4, temperature=2.0, max_tokens=3, ignore_eos=True))
    alone = [tokens(llm, [prompt], [params])[0] for prompt, params in zip(PROMPTS, company, strict=False)]
    engine, done, errors = llm.engine, {}, []
    engine.add_request("bad", PROMPTS[2], SamplingParams(extra_args={"m4_fails": 1}, max_tokens=3))
    for name, (prompt, params) in enumerate(zip(PROMPTS, company, strict=False)):
        engine.add_request(str(name), prompt, params)
    while engine.has_unfinished_requests():
        try:
            done |= {output.request_id: output.outputs[0].token_ids for output in engine.step() if output.finished}
        except RuntimeError as error:
            errors.append(str(error))
    assert [done["0"], done["1"]] == alone
    assert len(errors) == 1
    assert "boom" in errors[0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
def test_rows_that_cannot_be_drawn_from_are_told_apart(llm: LLM) -> None:
    """NaN from the model, and nothing left by the request's own masks."""
    rows = [make_row(SamplingParams(logprobs=1)), make_row(SamplingParams(allowed_token_ids=[5]))] * 2
    logits = torch.zeros(4, 50)
    logits[0, 3] = torch.nan
    logits[1, 5] = -torch.inf
    logits[2] = -torch.inf
    params, offsets = GumbelParams(torch.from_numpy(host_params(rows, [0] * 4, 50))), torch.arange(4)
    gumbel = GumbelRows(params, offsets, params.draw(logits, offsets))
    output = sample_groups(Sampler(), logits, group_rows(rows, 50, torch.device("cpu")), gumbel)
    assert output.token_ids.tolist() == [NOT_FINITE, NO_TOKEN, NOT_FINITE, 5]
