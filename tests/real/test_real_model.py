"""SmolLM2-135M-Instruct in float32: the tokens, the numbers and the texts are Hugging Face's."""

from __future__ import annotations

import pytest

from folovllm import LLM, SamplingParams
from tests.real.oracle import Oracle

MAX_TOKENS = 12
QUESTION = "Why is the sky blue?"
# 74 tokens, so that it comes in by several chunks, and fills four blocks that the next one finds again.
STORY = (
    "Once upon a time there was a clockmaker who lived at the edge of a quiet town. Every morning he opened his shop, "
    "wound the great clock in the window, and listened. People said that he could hear what was wrong with a clock "
    "before he saw it. One winter a stranger came in, put a small silver watch on the counter, and asked: "
)
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "你好，世界！",
    "Once upon a time",
    "🔥🦊 is",
    "SELECT name FROM users WHERE",
    STORY,
    STORY + "“Can you",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
]


def greedy(**kwargs) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": MAX_TOKENS, **kwargs})


@pytest.fixture(scope="module")
def expected(oracle: Oracle) -> list[list[int]]:
    return [oracle.greedy(oracle.ids(prompt), MAX_TOKENS) for prompt in PROMPTS]


def token_ids(outputs) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_prompts_become_the_same_token_ids(llm: LLM, oracle: Oracle) -> None:
    outputs = llm.generate(PROMPTS, greedy(max_tokens=1))
    assert [output.prompt_token_ids for output in outputs] == [oracle.ids(prompt) for prompt in PROMPTS]


def test_alone(llm: LLM, expected: list[list[int]]) -> None:
    for place in (0, 3, 7):
        assert token_ids(llm.generate(PROMPTS[place], greedy())) == [expected[place]]


def test_all_in_one_batch(llm: LLM, oracle: Oracle, expected: list[list[int]]) -> None:
    outputs = llm.generate(PROMPTS, greedy())
    assert token_ids(outputs) == expected
    assert [output.outputs[0].text for output in outputs] == [oracle.text(ids) for ids in expected]


def test_in_chunks_and_then_from_the_cache(chunked_llm: LLM, expected: list[list[int]]) -> None:
    first, again = (chunked_llm.generate(PROMPTS, greedy()) for _ in range(2))
    assert token_ids(first) == expected
    assert token_ids(again) == expected
    assert len(again[7].prompt_token_ids) == 74
    assert again[7].num_cached_tokens == again[8].num_cached_tokens == 64


@pytest.mark.parametrize("prompt", [PROMPTS[0], PROMPTS[4], STORY])
def test_beams(llm: LLM, oracle: Oracle, prompt: str) -> None:
    params = SamplingParams(use_beam_search=True, n=2, best_of=4, max_tokens=8, temperature=0)
    output = llm.generate(prompt, params)[0]
    sequences, scores = oracle.beams(output.prompt_token_ids, width=4, n=2, max_tokens=8)
    assert [beam.token_ids for beam in output.outputs] == sequences
    got = [beam.cumulative_logprob / len(beam.token_ids) for beam in output.outputs]
    assert got == pytest.approx(scores, abs=1e-4)


def test_log_probabilities(llm: LLM, oracle: Oracle, expected: list[list[int]]) -> None:
    """Of the tokens taken and of the five likeliest, and of the prompt's own tokens."""
    outputs = llm.generate(PROMPTS[::2], greedy(logprobs=5, prompt_logprobs=1))
    for output, ids in zip(outputs, expected[::2], strict=True):
        want = oracle.logprobs(output.prompt_token_ids, ids)
        for entry, row, taken in zip(output.outputs[0].logprobs, want, ids, strict=True):
            top = row.topk(5)
            assert {taken, *top.indices.tolist()} == set(entry)
            got = {token: found.logprob for token, found in entry.items()}
            assert got == pytest.approx({token: row[token].item() for token in entry}, abs=1e-3)
        prompt = output.prompt_token_ids
        rows = oracle.logprobs(prompt[:1], prompt[1:])
        assert output.prompt_logprobs[0] is None
        got = [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)]
        assert got == pytest.approx([row[token].item() for row, token in zip(rows, prompt[1:], strict=True)], abs=1e-3)


def test_stop_strings_cut_where_the_text_has_them(llm: LLM, oracle: Oracle, expected: list[list[int]]) -> None:
    """The stop of each prompt is a piece out of the middle of its own text, which tokens need not respect."""
    texts = [oracle.text(ids) for ids in expected]
    stops = [text[len(text) // 2 : len(text) // 2 + 3] for text in texts]
    outputs = llm.generate(PROMPTS, [greedy(stop=stop) for stop in stops])
    for output, text, stop in zip(outputs, texts, stops, strict=True):
        assert output.outputs[0].text == text[: text.index(stop)]
        assert output.outputs[0].finish_reason == "stop"


def test_a_chat_of_three_turns(chunked_llm: LLM, oracle: Oracle) -> None:
    """Each turn begins with all that was said before, which the cache has; the template is the model's own."""
    messages: list[dict[str, str]] = []
    for question in ("Hi! What is your name?", QUESTION, "Say that in one word."):
        messages.append({"role": "user", "content": question})
        output = chunked_llm.chat(messages, greedy(max_tokens=16))[0]
        prompt = output.prompt_token_ids
        assert prompt == oracle.chat_ids(messages)
        want = oracle.greedy(prompt, 16)
        assert output.outputs[0].token_ids == want
        assert output.outputs[0].text == oracle.text(want)
        messages.append({"role": "assistant", "content": output.outputs[0].text})
    assert output.num_cached_tokens > 32
