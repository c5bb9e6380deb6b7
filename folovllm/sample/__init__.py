"""From logits to a token: masks, biases, penalties, temperature, top-k, top-p, min-p, the draw, and logprobs.

vLLM: v1/sample/
"""
