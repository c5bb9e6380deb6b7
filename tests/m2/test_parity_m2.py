"""Whatever the company and whenever they come: greedy tokens equal Hugging Face's, token for token, in float32."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import ModelConfig, SamplingParams, get_model_and_tokenizer
from tests.helpers import hf_greedy, make_hf_folder
from tests.m1.support import run
from tests.m2.support import assert_idle, make_engine

LENGTHS = [1, 40, 2, 17, 3, 100, 1, 33, 5, 64]
MAX_TOKENS = [24, 3, 30, 17, 1, 12, 24, 8, 20, 5]
PROMPTS = [
    torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(i)).tolist()
    for i, length in enumerate(LENGTHS)
]


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "llama"])
def model(request, tmp_path_factory):
    """(folder, what Hugging Face's model says to each prompt)."""
    folder = make_hf_folder(tmp_path_factory.mktemp("model"), request.param)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    return folder, [hf_greedy(oracle, prompt, n) for prompt, n in zip(PROMPTS, MAX_TOKENS, strict=True)]


def greedy(max_tokens, **kwargs):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **kwargs)


def tokens_of(done):
    return {name: output.outputs[0].token_ids for name, output in done.items()}


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8])
def test_requests_that_come_and_go_at_any_time(model, max_num_seqs):
    folder, want = model
    engine = make_engine(folder, skip_tokenizer_init=True, max_num_seqs=max_num_seqs, max_model_len=128)
    rng = random.Random(max_num_seqs)
    arrivals = sorted((rng.randrange(25), i) for i in range(len(PROMPTS)))
    done, step, doomed = {}, 0, {"gone-0": 2, "gone-1": 9}
    for name in doomed:
        engine.add_request(name, PROMPTS[3], greedy(60))
    while arrivals or engine.has_unfinished_requests():
        while arrivals and arrivals[0][0] <= step:
            i = arrivals.pop(0)[1]
            engine.add_request(str(i), PROMPTS[i], greedy(MAX_TOKENS[i]))
        for name in [name for name, at in doomed.items() if at == step]:
            engine.abort_request(name)
        done |= {out.request_id: out for out in engine.step() if out.finished}
        engine.scheduler.check_invariants()
        step += 1
    assert tokens_of(done) == {str(i): tokens for i, tokens in enumerate(want)}
    assert_idle(engine)


def test_every_one_of_n_sequences_that_take_the_likeliest_token_says_what_hugging_face_says(model):
    folder, want = model
    engine = make_engine(folder, skip_tokenizer_init=True, max_num_seqs=3, max_model_len=128)
    # In two waves. Greedy sampling refuses n > 1; of one candidate each draw takes the same.
    engine.add_request("n", PROMPTS[3], SamplingParams(top_k=1, max_tokens=MAX_TOKENS[3], n=5))
    engine.add_request("one", PROMPTS[5], greedy(MAX_TOKENS[5]))
    done, _ = run(engine)
    assert [out.token_ids for out in done["n"].outputs] == [want[3]] * 5
    assert done["one"].outputs[0].token_ids == want[5]


@pytest.mark.usefixtures("either_cpu")
def test_the_embedded_model_in_a_batch():
    oracle, tokenizer = get_model_and_tokenizer(ModelConfig("embedded", dtype="float32"), "cpu")
    texts = ["Once upon a time", "从前", "The cat", "What is a KV cache?", "A"]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    engine = make_engine("embedded", max_num_seqs=3)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, greedy(12 + 4 * i))
        engine.step()
    done = tokens_of(run(engine)[0])
    for i, prompt in enumerate(prompts):
        assert done[str(i)] == hf_greedy(oracle, prompt, 12 + 4 * i), texts[i]


@pytest.mark.usefixtures("either_cpu")
def test_prompt_logprobs_in_a_mixed_batch_equal_hugging_faces(tmp_path):
    folder = make_hf_folder(tmp_path, "qwen3")
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    engine = make_engine(folder, skip_tokenizer_init=True, max_num_seqs=8, max_model_len=128)
    engine.add_request("decodes", PROMPTS[1], greedy(10))
    engine.step()
    for i in (5, 3, 9):
        engine.add_request(str(i), PROMPTS[i], greedy(2, prompt_logprobs=i % 4))  # 1, 3 and 1 of them
        engine.add_request(f"beside{i}", PROMPTS[i + 1 - 2 * (i == 9)], greedy(2))
    done, _ = run(engine)
    assert done["decodes"].prompt_logprobs is done["beside3"].prompt_logprobs is None
    for i in (5, 3, 9):
        with torch.inference_mode():
            want = oracle(torch.tensor([PROMPTS[i]])).logits[0].double().log_softmax(-1)
        first, *entries = done[str(i)].prompt_logprobs
        assert (first, len(entries)) == (None, len(PROMPTS[i]) - 1)
        for row, token_id, entry in zip(want[:-1], PROMPTS[i][1:], entries, strict=True):
            assert set(entry) == {token_id, *row.topk(i % 4).indices.tolist()}
            for other, logprob in entry.items():
                assert logprob.logprob == pytest.approx(float(row[other]), abs=2e-4)
