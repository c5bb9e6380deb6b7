"""Greedy output equals Hugging Face's, token for token, in float32."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import LLM, ModelConfig, SamplingParams, get_model_and_tokenizer
from tests.helpers import hf_greedy, make_hf_folder
from tests.m1.test_models import MODELS

PROMPT_LENGTHS = (1, 2, 17, 64, 300)
NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)


def random_prompts(vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_hugging_face(name, tmp_path):
    kind, over = MODELS[name]
    folder = make_hf_folder(tmp_path, kind, **over)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = random_prompts(256)
    llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", device="cpu")
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt_token_ids == prompt
        assert output.outputs[0].token_ids == hf_greedy(oracle, prompt, NUM_TOKENS), f"prompt of {len(prompt)} tokens"


@pytest.mark.usefixtures("either_cpu")
def test_greedy_tokens_of_the_embedded_model_equal_hugging_face():
    oracle, tokenizer = get_model_and_tokenizer(ModelConfig("embedded", dtype="float32"), "cpu")
    story = tokenizer("Once upon a time")["input_ids"]
    prompts = [*random_prompts(len(tokenizer)), story]
    llm = LLM(dtype="float32", device="cpu")
    for prompt, output in zip(prompts, llm.generate(prompts, GREEDY, use_tqdm=False), strict=True):
        assert output.outputs[0].token_ids == hf_greedy(oracle, prompt, NUM_TOKENS), f"prompt of {len(prompt)} tokens"


def test_eos_ends_a_sequence_where_hugging_face_ends_it(tmp_path):
    folder = make_hf_folder(tmp_path, "llama")
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = [1, 2, 3]
    free = hf_greedy(oracle, prompt, 20)
    eos = free[7]
    first = free.index(eos)
    oracle.generation_config.eos_token_id = eos
    oracle.generation_config.pad_token_id = 0
    oracle.generation_config.save_pretrained(folder)
    llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", device="cpu")
    completion = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)[0].outputs[0]
    assert completion.token_ids == hf_greedy(oracle, prompt, 20) == free[: first + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)

    on = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    completion = llm.generate(prompt, on, use_tqdm=False)[0].outputs[0]
    assert (completion.token_ids, completion.finish_reason) == (free, "length")


@pytest.mark.usefixtures("either_cpu")
def test_prompt_logprobs_and_logprobs_equal_hugging_face(tmp_path):
    folder = make_hf_folder(tmp_path, "qwen3")
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = torch.randint(0, 256, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", device="cpu")
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    tokens = prompt + output.outputs[0].token_ids
    with torch.inference_mode():
        want = oracle(torch.tensor([tokens])).logits[0].double().log_softmax(-1)

    entries = [*output.prompt_logprobs, *output.outputs[0].logprobs]
    assert entries[0] is None  # nothing comes before the first token
    for position, entry in enumerate(entries[1:], start=1):
        row = want[position - 1]
        token = tokens[position]
        assert next(iter(entry)) == token
        assert entry[token].rank == int((row > row[token]).sum()) + 1
        top = row.topk(3 if position >= len(prompt) else 2)
        assert set(entry) == {token, *top.indices.tolist()}
        for token_id, logprob in entry.items():
            assert logprob.logprob == pytest.approx(float(row[token_id]), abs=2e-4)
    assert output.outputs[0].cumulative_logprob == pytest.approx(
        sum(entry[t].logprob for entry, t in zip(output.outputs[0].logprobs, output.outputs[0].token_ids, strict=True))
    )
