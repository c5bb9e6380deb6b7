"""A logits processor of your own, switched on per request by extra_args: logprobs from a sigmoid, not a softmax.

A softmax makes tokens compete: one large logit pushes all others towards zero. A sigmoid asks of each token alone
whether it fits, so several can be near 1 together. The processor puts log(sigmoid(logit)) in the logits' place;
logprobs_mode="processed" then reports log(sigmoid(logit) / sum of all sigmoids).

Run it: python examples/m1_sigmoid_logprobs.py
"""

from __future__ import annotations

import math

import _tree  # noqa: F401 - folovllm is this tree's
import torch

from folovllm import LLM, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor


@register_logits_processor("activation")
class Activation(LogitsProcessor):
    """Runs for requests with extra_args={"activation": ...}, and for no other row of the batch."""

    @classmethod
    def validate(cls, params: SamplingParams) -> None:
        value = (params.extra_args or {})["activation"]
        if value != "sigmoid":
            raise ValueError(f"activation must be 'sigmoid', got {value!r}; leave it out for a softmax")

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        # A sigmoid keeps the order of the logits: a greedy request still gets the same tokens.
        return torch.nn.functional.logsigmoid(logits)


RANKS = (1, 2, 4, 16, 64, 256, 1024)


def main() -> None:
    llm = LLM(dtype="float32", max_logprobs=max(RANKS))
    question = [{"role": "user", "content": "What is a KV cache?"}]
    plain = SamplingParams(temperature=0, max_tokens=1, logprobs=max(RANKS), logprobs_mode="processed")
    sigmoid = plain.clone()
    sigmoid.extra_args = {"activation": "sigmoid"}

    first_token = {}
    for name, params in (("softmax", plain), ("sigmoid", sigmoid)):
        completion = llm.chat(question, params, use_tqdm=False)[0].outputs[0]
        assert completion.logprobs is not None
        first_token[name] = sorted(completion.logprobs[0].values(), key=lambda entry: -entry.logprob)

    # Relative to the likeliest token, where the sum over the vocabulary drops out.
    print("How well does each token fit as the answer's first one, against the likeliest?\n")
    print("rank  token         softmax  sigmoid")
    for rank in RANKS:
        ratios = [math.exp(entries[rank - 1].logprob - entries[0].logprob) for entries in first_token.values()]
        token = first_token["softmax"][rank - 1].decoded_token
        print(f"{rank:>4}  {token!r:<12}  {ratios[0]:.5f}  {ratios[1]:.5f}")

    # The processor's own check refuses what it could not act on, before anything runs.
    try:
        llm.chat(question, SamplingParams(extra_args={"activation": "tanh"}), use_tqdm=False)
    except ValueError as error:
        print(f"\nrefused: {error}")


if __name__ == "__main__":
    main()
