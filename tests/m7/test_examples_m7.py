"""The example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import re

import torch

from folovllm.layers.compiled_ops import compiled_unavailable_reason
from tests.helpers import run_example

NAMES = ["m7_quantized.py"]


def test_tokens_are_those_of_the_codes_and_few_bytes_are_left() -> None:
    text = run_example(NAMES[0])
    verdicts = re.findall(r"(\w+): the tokens are those of the weights that the codes mean: (\w+)", text)
    assert verdicts == [("w8a8", "True"), ("w4a16", "True")]
    bits = [float(number) for number in re.findall(r"([\d.]+) bits a weight", text)]
    # A scale for each row, or for each 128 columns, beside the codes. Without a compiler the weights are float32 again.
    compiled = compiled_unavailable_reason(torch.float32) is None
    most = [9, 4.5] if compiled else [32, 32]
    assert all(least < number <= limit for least, number, limit in zip([8, 4], bits, most, strict=True))
