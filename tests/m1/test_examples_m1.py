"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import pytest

from tests.helpers import Printed

SAYS = {
    "m1_generate.py": ["'Once upon a time': 4 prompt tokens", "  [1] ", "finish_reason 'stop'", "ms per token"],
    "m1_chat.py": ["> What is a KV cache?", "> 什么是前缀缓存？", "the second prompt:\n<|im_start|>user\nWhat is"],
    "m1_stream.py": ["64 tokens, the first after", "left after 5 tokens; unfinished requests: False"],
    "m1_sampling.py": ["greedy, frequency_penalty=2", "greedy, stop at the first period"],
    "m1_logprobs.py": ["the likeliest", "all of them together: log p = -", "perplexity"],
    "m1_sigmoid_logprobs.py": ["sigmoid"],
    "m1_attention_by_hand.py": [
        "grows   [0.707, 2.121, 2.828]  [0.074, 0.306, 0.620]  [1.389, 3.703]",
        "with and without the cache: equal",
        "by hand and in the engine: equal to six digits",
    ],
    "m1_bpe_by_hand.py": ["teacher  t·e·ache·r   ids [8, 4, 11, 6], the library agrees", "18 bytes, 6 tokens"],
    "m1_filters_by_hand.py": [
        "top_k=5, top_p=0.95        0.4839   0.2688   0.1613   0.0860        -",
        "the sampler  keeps 4, mass 0.95",
        "cumsum <= p with top_p=0.3 keeps 0",
        "151,933 excluded ones share 1.5e-05",
    ],
}


@pytest.mark.parametrize("name", SAYS)
def test_example_says_what_it_sets_out_to_say(name: str, printed: Printed) -> None:
    for text in SAYS[name]:
        assert text in printed[name]


def test_the_same_seed_gives_the_same_text_in_the_sampling_example(
    printed: Printed,
) -> None:
    lines = printed["m1_sampling.py"].splitlines()
    by_label = {line[:34].strip(): line[34:] for line in lines}
    assert by_label["temperature 0.7"] == by_label["temperature 0.7, the same seed"]
    assert by_label["temperature 0.7"] != by_label["temperature 0.7, another seed"]


def test_fluent_text_is_less_perplexing_than_shuffled(printed: Printed) -> None:
    lines = [line for line in printed["m1_logprobs.py"].splitlines() if line.startswith("perplexity")]
    fluent, shuffled = (float(line.split()[1]) for line in lines)
    assert fluent < shuffled
