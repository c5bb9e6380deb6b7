"""Logits that are not finite: the request fails by name, and nobody draws from them, reports or keeps them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import LLM, SamplingParams
from folovllm.errors import LogitsNotFiniteError, NoTokenLeftError
from folovllm.sample.draw import NO_TOKEN, NOT_FINITE
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import Sampler, SamplerOutput
from tests.helpers import hf_greedy
from tests.m1.overflow import BOMB, make_overflow_model
from tests.m1.support import assert_empty, params, run

VOCAB = 5000  # more than the filters look at first
NAN, INF = torch.nan, torch.inf
GREEDY = params(temperature=0, max_tokens=6, ignore_eos=True)


@register_logits_processor("fill")
class Fill(LogitsProcessor):
    """Gives every token the logit extra_args["fill"]."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for position, row in enumerate(self.rows):
            logits[position] = (row.params.extra_args or {})["fill"]
        return logits


# The sampler

PATHS = {
    "greedy": {"temperature": 0},
    "full": {},
    "top_k": {"top_k": 20},
    "wide top_k": {"top_k": 3000},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.01},
    "masked": {"allowed_token_ids": list(range(10, 600))},
    "greedy, biased": {"temperature": 0, "logit_bias": {5: 1.0}},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "processed": {"top_p": 0.9, "logprobs_mode": "processed"},
}
BAD = {
    "all NaN": lambda row: row.fill_(NAN),
    "one NaN": lambda row: row[3:4].fill_(NAN),
    "one inf": lambda row: row[4321:4322].fill_(INF),
    "all -inf": lambda row: row.fill_(-INF),
}


def sample(logits: torch.Tensor, wanted: list[SamplingParams], draw: str = "auto") -> SamplerOutput:
    cpu = torch.device("cpu")
    rows = [SamplingRow(p, [1, 2], [], frozenset(), make_generator(p, 0, cpu)) for p in wanted]
    return Sampler(draw)(logits, SamplingMetadata.build(rows, logits.shape[-1], cpu))  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", ["inverse_cdf", "exponential_race"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_bad_row_is_marked_on_every_path_and_leaves_its_neighbours_as_they_are(dtype, bad, draw):
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)).mul_(4).to(dtype)
    logits[:, 7] = -INF  # beside finite ones that is a mask
    for fields in PATHS.values():
        wanted = [SamplingParams(**{"seed": seed, "logprobs": 2, **fields}) for seed in (11, 12, 13)]
        if fields.get("temperature") == 0:
            wanted = [replace(one, seed=None) for one in wanted]
        alone = [sample(logits[i : i + 1], wanted[i : i + 1], draw) for i in (0, 2)]
        spoilt = logits.clone()
        BAD[bad](spoilt[1])
        batch = sample(spoilt, wanted, draw)
        first, second, third = batch.token_ids.tolist()
        assert (second, [first], [third]) == (NOT_FINITE, *(one.token_ids.tolist() for one in alone))
        assert not batch.logprobs.logprobs[[0, 2]].isnan().any()


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_args": {"fill": -INF}},
        {"extra_args": {"fill": NAN}},
        {"extra_args": {"fill": INF}},
        {"logit_bias": {1: 3.4e38}, "repetition_penalty": 0.5},
    ],
    ids=["no token", "NaN", "inf", "overflow"],
)
@pytest.mark.parametrize("path", ["greedy", "full", "top_k", "top_p", "min_p"])
def test_a_row_whose_own_settings_leave_nothing_is_told_apart(path, fields):
    logits = torch.zeros(2, VOCAB)
    logits[:, 1] = 1.0
    logits[1, 9] = NAN
    out = sample(logits, [SamplingParams(**PATHS[path], **fields)] * 2)
    assert out.token_ids.tolist() == [NO_TOKEN, NOT_FINITE]


# The engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_overflow_model(tmp_path_factory.mktemp("overflow"), max_position_embeddings=64)


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(str(folder), dtype="float16", device="cpu")


@pytest.mark.parametrize("asked", [{}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"n": 2, "temperature": 1.0}], ids=str)
def test_an_overflow_fails_its_request_by_name_and_the_others_go_on(llm, asked):
    alone = llm.generate("good", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    llm.engine.add_request("bad", "go!o", replace(GREEDY, **{"best_of": None, **asked}))
    llm.engine.add_request("fine", "good", GREEDY)
    with pytest.raises(
        LogitsNotFiniteError, match=r"^request 'bad': its logits are not finite.*use dtype='float32' or"
    ):
        run(llm.engine)
    assert run(llm.engine)[0]["fine"].outputs[0].token_ids == alone
    assert_empty(llm.engine)


def test_the_way_out_that_the_error_names_gives_what_hugging_face_gives(folder):
    llm = LLM(str(folder), dtype="float32", device="cpu")
    prompt = [5, 9, BOMB, 4]
    said = llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    assert said == hf_greedy(AutoModelForCausalLM.from_pretrained(folder), prompt, 6)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"extra_args": {"fill": -INF}}, "extra_args"),
        ({"extra_args": {"fill": NAN}, "temperature": 0}, "extra_args"),
        ({"logit_bias": {ord("g"): 3.4e38}, "repetition_penalty": 0.5}, "logit_bias, repetition_penalty"),
    ],
    ids=["no token", "NaN", "overflow"],
)
def test_settings_that_leave_no_token_fail_their_request_by_name(llm, fields, names):
    llm.engine.add_request("bad", "good", params(logprobs=2, **fields))
    llm.engine.add_request("fine", "good", GREEDY)
    with pytest.raises(NoTokenLeftError, match=rf"^request 'bad': no token is left to draw.* after {names}: relax"):
        run(llm.engine)
    assert len(run(llm.engine)[0]["fine"].outputs[0].token_ids) == 6


def test_a_prompt_logprob_that_is_not_finite_fails_its_request(folder, llm):
    """The head alone overflows, for one token, in the middle of a prompt: what is drawn behind it is fine."""
    weight = llm.engine.runner.model.lm_head.weight
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        prompt = list(range(40, 60))
        hidden = model.model(torch.tensor([prompt])).last_hidden_state[0]
        direction = hidden[4] - hidden[-1]  # on one side of it the logit is +inf, on the other -inf
        kept = weight[200].clone()
        weight[200] = (direction / direction.abs().max() * 65_000).half()
        logits = hidden @ weight[200].float()
    assert logits[4] > 65_504 > -65_504 > logits[-1]
    try:
        ask = {"prompt_token_ids": prompt}
        with pytest.raises(LogitsNotFiniteError, match="its logits are not finite"):
            llm.generate(ask, replace(GREEDY, prompt_logprobs=0, max_tokens=1), use_tqdm=False)
        assert len(llm.generate(ask, replace(GREEDY, max_tokens=1), use_tqdm=False)[0].outputs[0].token_ids) == 1
    finally:
        weight[200] = kept
