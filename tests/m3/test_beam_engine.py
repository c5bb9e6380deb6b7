"""Beam search in the engine against Hugging Face's: the same sequences and scores, alone, in crowds, under pressure."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from folovllm import LLM, BeamSearchParams, ModelConfig, SamplingParams, get_model_and_tokenizer
from tests.helpers import hf_greedy, some
from tests.m1.support import run
from tests.m2.support import assert_idle
from tests.m3.beam_oracle import EOS, BeamOracle, beam_params

ALLOWED = [3, 4, 5, 8, 23]
PROMPTS = ([5], [3, 9, 17, 4], [21, 7, 7, 2, 30, 11, 1])


@pytest.fixture(scope="module")
def beams(tmp_path_factory: pytest.TempPathFactory) -> BeamOracle:
    return BeamOracle(tmp_path_factory.mktemp("beams"))


ALL_SETTINGS = [
    (prompt, beam_params(width, n, length_penalty=length_penalty, early_stopping=early_stopping))
    for (place, (width, n)), length_penalty, early_stopping in itertools.product(
        enumerate([(2, 2), (4, 1), (8, 5)]), (1.0, 0.0, 2.0, -1.0), (False, True, "never")
    )
    for prompt in [PROMPTS[place]]
]


@pytest.mark.parametrize(
    ("mode", "size"),
    some(
        [
            ("auto", {}),
            ("auto", {"num_kv_blocks": 34, "block_size": 4}),
            ("swap", {"num_kv_blocks": 100, "block_size": 1, "swap_space": 1e-5}),
            ("recompute", {"num_kv_blocks": 17, "block_size": 16, "max_num_seqs": 20}),
            ("recompute", {"num_kv_blocks": 34, "block_size": 4}),
            ("swap", {"num_kv_blocks": 34, "block_size": 4}),
        ],
        4,
    ),
    ids=["roomy", "auto", "both", "large blocks", "recompute", "swap"],
)
def test_all_settings_in_one_batch_beside_sampled_and_greedy_requests(
    beams: BeamOracle, mode: Any, size: dict[str, Any]
) -> None:
    llm = beams.make_llm(preemption_mode=mode, **size)
    others: list[SamplingParams] = [
        SamplingParams(temperature=0, max_tokens=20),
        SamplingParams(n=3, seed=1, max_tokens=20, top_k=1),
    ]
    asked = [*ALL_SETTINGS, *itertools.product(PROMPTS, others)]
    asked = asked[::2] + asked[1::2]
    outputs = llm.generate([prompt for prompt, _ in asked], [params for _, params in asked], use_tqdm=False)
    for (prompt, params), output in zip(asked, outputs, strict=True):
        if params.use_beam_search:
            beams.check(output, params)
        else:
            expected = hf_greedy(beams.hf, prompt, 20)
            assert [completion.token_ids for completion in output.outputs] == [expected] * params.n
    preempter = llm.engine.scheduler.preempter
    if not size:
        assert (preempter.num_recomputed, preempter.num_swapped) == (0, 0)
    elif mode == "recompute":
        assert preempter.num_recomputed > 3
    else:
        assert preempter.num_swapped > 3
    assert_idle(llm.engine)
    assert llm.engine.scheduler.kv.pool.num_used == llm.engine.scheduler.kv.swap_pool.num_used == 0


def test_eos_of_the_generation_config_ends_beams_unless_it_is_to_be_ignored(beams: BeamOracle, tmp_path) -> None:
    beams.hf.save_pretrained(tmp_path)
    config = type(beams.hf.generation_config)(eos_token_id=EOS, pad_token_id=31)
    config.save_pretrained(tmp_path)
    llm = LLM(str(tmp_path), skip_tokenizer_init=True, dtype="float32", device="cpu")
    params = beam_params(4, stop_token_ids=None)
    output = llm.generate(PROMPTS[1], params, use_tqdm=False)[0]
    beams.check(output, params)
    assert {(c.finish_reason, c.stop_reason) for c in output.outputs} <= {("stop", None), ("length", None)}
    assert "stop" in {c.finish_reason for c in output.outputs}
    params = beam_params(4, stop_token_ids=None, ignore_eos=True)
    output = llm.generate(PROMPTS[1], params, use_tqdm=False)[0]
    beams.check(output, params, eos_token_id=None)
    assert {c.finish_reason for c in output.outputs} == {"length"}


@pytest.mark.parametrize("max_tokens", [1, 2, 10])
@pytest.mark.parametrize("eos", [[], [19], [2, 7, 19, 28]], ids=["none", "one", "four"])
def test_any_number_of_eos_ids_and_few_tokens(beams: BeamOracle, eos: list[int], max_tokens: int) -> None:
    params = beam_params(4, stop_token_ids=eos, max_tokens=max_tokens)
    for output in beams.make_llm().generate(list(PROMPTS), params, use_tqdm=False):
        beams.check(output, params, eos_token_id=eos or None)


def test_stop_token_ids_are_told_as_the_reason(beams: BeamOracle) -> None:
    output = beams.make_llm().generate(PROMPTS[1], beam_params(4), use_tqdm=False)[0]
    by_token = [c for c in output.outputs if c.finish_reason == "stop"]
    assert by_token
    assert all(c.stop_reason == c.token_ids[-1] in EOS for c in by_token)
    assert [c.index for c in output.outputs] == [0, 1, 2, 3]


@pytest.mark.parametrize("pressure", some([{"num_kv_blocks": 18, "block_size": 4, "preemption_mode": "recompute"}, {}]))
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"min_tokens": 5}, {"min_new_tokens": 5}),
        ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
        ({"allowed_token_ids": ALLOWED}, {"suppress_tokens": [i for i in range(32) if i not in ALLOWED]}),
    ],
    ids=["min_tokens", "repetition_penalty", "allowed_token_ids"],
)
def test_masks_and_penalties(beams: BeamOracle, ours: dict[str, Any], theirs: dict[str, Any], pressure: Any) -> None:
    llm = beams.make_llm(**pressure)
    params = beam_params(4, **ours)
    plain = llm.generate(list(PROMPTS), beam_params(4), use_tqdm=False)
    edited = llm.generate(list(PROMPTS), params, use_tqdm=False)
    for output in edited:
        beams.check(output, params, **theirs)
    assert [[c.token_ids for c in output.outputs] for output in edited] != [
        [c.token_ids for c in output.outputs] for output in plain
    ]
    assert (llm.engine.stats().preemptions > 0) == bool(pressure)


def test_text_and_bad_words_of_the_embedded_model() -> None:
    oracle, tokenizer = get_model_and_tokenizer(ModelConfig("embedded", dtype="float32"), "cpu")
    llm = LLM(dtype="float32", device="cpu", num_kv_blocks=40)
    prompt = "Once upon a time"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    plain, without = [], []
    for bad_words in ([], ["far"]):
        banned = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("far", " far")]
        settings = {"bad_words_ids": banned} if bad_words else {}
        out = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=4, num_return_sequences=2,
            max_new_tokens=16, **settings,
        )  # fmt: skip
        expected = [tokenizer.decode(row, skip_special_tokens=True) for row in out[:, ids.shape[1] :]]
        params = SamplingParams(n=2, best_of=4, use_beam_search=True, temperature=0, max_tokens=16, bad_words=bad_words)
        got = [completion.text for completion in llm.generate(prompt, params, use_tqdm=False)[0].outputs]
        assert got == expected
        (without if bad_words else plain).extend(got)
    assert plain != without
    assert not any("far" in text for text in without)


def test_blocks_are_shared_while_beams_run_and_all_come_back(beams: BeamOracle) -> None:
    engine = beams.make_llm(num_kv_blocks=40, block_size=4).engine
    engine.add_request("r", list(PROMPTS[2]), beam_params(8))
    shared, used = set(), set()
    while engine.has_unfinished_requests():
        engine.step()
        shared.add(engine.stats().kv_blocks_shared)
        used.add(engine.stats().kv_blocks_used)
        engine.scheduler.check_invariants()
    assert max(shared) > 1
    assert max(used) < 1 + 8 * 3 + 1
    assert_idle(engine)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_an_abort_in_mid_search_leaves_nothing(beams: BeamOracle, steps: int) -> None:
    engine = beams.make_llm(num_kv_blocks=20, block_size=4).engine
    engine.add_request("gone", list(PROMPTS[1]), beam_params(4, ignore_eos=True))
    engine.add_request("stays", list(PROMPTS[2]), beam_params(4))
    for _ in range(steps):
        engine.step()
    engine.abort_request("gone")
    engine.scheduler.check_invariants()
    engine.add_request("gone", list(PROMPTS[1]), beam_params(4))  # the name is free again
    done = run(engine)[0]
    beams.check(done["stays"], beam_params(4))
    beams.check(done["gone"], beam_params(4))
    assert_idle(engine)


@pytest.mark.parametrize("prompt", some(PROMPTS), ids=len)
def test_an_abort_after_the_first_beam_has_died_leaves_nothing(beams: BeamOracle, prompt: list[int]) -> None:
    engine = beams.make_llm().engine
    engine.add_request("gone", list(prompt), beam_params(4, max_tokens=40, ignore_eos=True, stop_token_ids=None))
    for _ in range(30):
        if "gone-0" not in engine.requests["gone"].sequences:
            break
        engine.step()
    else:
        pytest.fail("the first beam lives on: take another prompt")
    engine.abort_request("gone")
    assert_idle(engine)
    assert (engine.core if hasattr(engine.core, "beams") else engine.output_processor).beams == {}


def test_the_longest_context_ends_beams(beams: BeamOracle) -> None:
    llm = beams.make_llm(max_model_len=12)
    output = llm.generate(PROMPTS[2], beam_params(3, max_tokens=40, stop_token_ids=None), use_tqdm=False)[0]
    beams.check(output, beam_params(3, max_tokens=5), eos_token_id=None)


ERRORS = {
    "stop strings": (
        {"stop": ["a"]},
        {},
        r"^stop must not be given with use_beam_search=True, got \['a'\]: beams have no text before they end",
    ),
    "too wide for the batch": (
        {},
        {"max_num_seqs": 3},
        r"^best_of must be at most 3 with use_beam_search=True, got 4: beams run together; raise max_num_seqs$",
    ),
    "too large for the cache": (
        {"max_tokens": 20},
        {"num_kv_blocks": 20, "block_size": 4},
        r"^best_of must be small enough for its beams to fit into the KV cache, got 4: 4 sequences of up to 24 tokens "
        r"may need 21 blocks of 20; lower best_of or max_tokens, or raise num_kv_blocks$",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_can_not_be_served_is_refused_by_its_name(beams: BeamOracle, name: str) -> None:
    asked, size, text = ERRORS[name]
    engine = beams.make_llm(**size).engine
    with pytest.raises(ValueError, match=text):
        engine.add_request("r", list(PROMPTS[1]), beam_params(4, **asked))
    assert_idle(engine)


def test_streaming_beams_is_refused(beams: BeamOracle) -> None:
    engine = beams.make_llm().engine
    with pytest.raises(ValueError, match=r"^use_beam_search must be False when streaming: which beam wins is known"):
        engine.generate_stream(list(PROMPTS[1]), beam_params(4))
    assert_idle(engine)


EDITS = {
    "allowed": {"allowed_token_ids": ALLOWED},
    "biased": {"logit_bias": {7: 3.0, 11: -2.0}},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.3},
}


@torch.inference_mode()
@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("edit", EDITS)
def test_logprobs_of_edited_beams_are_the_models_own_or_what_beams_are_ranked_by(
    beams: BeamOracle, edit: str, mode: Any
) -> None:
    """Raw ones and their ranks are Hugging Face's own; processed ones sum up to the score that it gives the beam."""
    llm = beams.make_llm()
    params = [
        beam_params(3, 2, logprobs=4, logprobs_mode=mode, **EDITS[edit]),
        beam_params(4, 1, logprobs=2, logprobs_mode="raw", prompt_logprobs=1),  # nothing is edited
        SamplingParams(temperature=0, max_tokens=5, logprobs=1),
    ]
    outputs = llm.generate([PROMPTS[1]] * 3, params, use_tqdm=False)
    plain = llm.generate(PROMPTS[1], beam_params(3, 2, **EDITS[edit]), use_tqdm=False)[0]
    assert [c.token_ids for c in outputs[0].outputs] == [c.token_ids for c in plain.outputs]
    assert len(outputs[1].prompt_logprobs) == len(PROMPTS[1])
    is_raw = {0: mode == "raw", 1: True, 2: True}
    for place, output in enumerate(outputs):
        for completion in output.outputs:
            chosen = [entry[t].logprob for entry, t in zip(completion.logprobs, completion.token_ids, strict=True)]
            if not is_raw[place]:
                assert sum(chosen) == pytest.approx(completion.cumulative_logprob, abs=1e-4)
                continue
            text = [*output.prompt_token_ids, *completion.token_ids]
            rows = beams.hf(torch.tensor([text])).logits[0].log_softmax(-1)[len(output.prompt_token_ids) - 1 :]
            for row, entry, token_id in zip(rows, completion.logprobs, completion.token_ids, strict=False):
                likeliest = row.topk(params[place].logprobs)
                assert entry.keys() == {token_id, *likeliest.indices.tolist()}
                for said, logprob in entry.items():
                    assert logprob.logprob == pytest.approx(float(row[said]), abs=1e-4)
                    assert logprob.rank == int((row > row[said]).sum()) + 1


def test_llm_beam_search_is_the_engines() -> None:
    llm = LLM(dtype="float32", num_kv_blocks=64)
    params = SamplingParams(use_beam_search=True, n=3, best_of=3, temperature=0, max_tokens=6, length_penalty=0.5)
    (expected,) = llm.generate("Once upon", params, use_tqdm=False)
    (found,) = llm.beam_search(["Once upon"], BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.5))
    prompt = expected.prompt_token_ids
    assert [beam.tokens for beam in found.sequences] == [[*prompt, *beam.token_ids] for beam in expected.outputs]
    assert [beam.cum_logprob for beam in found.sequences] == [beam.cumulative_logprob for beam in expected.outputs]
    assert found.sequences[0].text == "Once upon" + expected.outputs[0].text
    for beam in found.sequences:
        assert sum(row[t].logprob for row, t in zip(beam.logprobs, beam.tokens[len(prompt) :], strict=True)) == (
            pytest.approx(beam.cum_logprob)
        )


def test_a_beam_of_no_width_is_refused() -> None:
    with pytest.raises(ValueError, match="^beam_width must be positive, got 0"):
        BeamSearchParams(beam_width=0, max_tokens=1)
