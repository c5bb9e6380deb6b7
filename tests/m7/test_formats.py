"""What is read from a checkpoint is what the package that wrote it reads, bit for bit."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.quantization.formats import AWQ_ORDER, pack, unpack
from tests.m7.support import NAMES, dequantized, read


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_that_the_packages_read(name):
    from tests.m7.support import FOLDERS

    model, expected = read(FOLDERS / name), dequantized(name)
    found = {}
    for path, layer in model.named_modules():
        if hasattr(layer, "codes"):
            parts = layer.codes.dequantize().half().split(list(layer.parts.values()))
            found |= {f"{path.rpartition('.')[0]}.{part or path.rpartition('.')[2]}.weight": weight
                      for part, weight in zip(layer.parts, parts, strict=True)}  # fmt: skip
    assert found.keys() == expected.keys()
    for weight in expected:
        assert torch.equal(found[weight], expected[weight]), weight


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_packed_is_unpacked(bits, dim):
    numbers = torch.randint(0, 2**bits, (24, 40), dtype=torch.uint8)
    assert torch.equal(unpack(pack(numbers, bits, dim), bits, dim), numbers)


def test_the_lowest_bits_come_first():
    assert pack(torch.tensor([[1, 2, 3, 0, 0, 0, 0, 15]]), 4, 1).tolist() == [[0x321 - (1 << 28)]]


def test_a_last_word_is_filled_up_with_zeros():
    assert pack(torch.tensor([[1, 2, 3]]), 4, 1).tolist() == [[0x321]]


def test_awq_mixes_eight_outputs():
    assert sorted(AWQ_ORDER.tolist()) == list(range(8))
