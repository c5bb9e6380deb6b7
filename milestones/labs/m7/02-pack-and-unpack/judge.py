import torch

from folovllm.layers.quantization.formats import pack, unpack
from lab_judge import expect, invariant


def words(*numbers):
    """As int32, from what is written in hexadecimal."""
    return torch.tensor([n - 2**32 if n >= 2**31 else n for n in numbers], dtype=torch.int32)


@invariant(1)
def test_the_lowest_bits_come_first():
    numbers = unpack(words(0x12345678)[None], bits=4, dim=1)
    expect(numbers.tolist(), [[8, 7, 6, 5, 4, 3, 2, 1]])


@invariant(1)
def test_four_numbers_of_eight_bits():
    numbers = unpack(words(0x04030201, 0x7F000005)[None], bits=8, dim=1)
    expect(numbers.tolist(), [[1, 2, 3, 4, 5, 0, 0, 127]])


@invariant(1)
def test_each_call_has_numbers_of_its_own():
    first, second = (unpack(words(word)[None], bits=8, dim=1) for word in (0x04030201, 0x08070605))
    expect([first.tolist(), second.tolist()], [[[1, 2, 3, 4]], [[5, 6, 7, 8]]])


@invariant(1)
def test_down_a_column():
    numbers = unpack(words(0x00000321, 0x00000654)[None], bits=4, dim=0)
    expect(numbers.tolist(), [[1, 4], [2, 5], [3, 6], *[[0, 0]] * 5])


@invariant(1)
def test_the_dimension_in_the_middle():
    packed = torch.arange(12, dtype=torch.int32).view(2, 2, 3)
    numbers = unpack(packed, bits=4, dim=1)
    expect(tuple(numbers.shape), (2, 16, 3))
    expect(numbers[:, ::8].tolist(), packed.tolist())
    expect(int(numbers.sum()), 66)


@invariant(2)
def test_a_negative_word():
    numbers = unpack(words(0xB7C82A5F)[None], bits=4, dim=1)
    expect(numbers.tolist(), [[15, 5, 10, 2, 8, 12, 7, 11]])
    expect(numbers.dtype, torch.uint8)


@invariant(2)
def test_a_negative_word_of_eight_bits():
    expect(unpack(words(0xFF80017F)[None], bits=8, dim=1).tolist(), [[127, 1, 128, 255]])


@invariant(3)
def test_a_word_is_put_together():
    word = pack(torch.tensor([[8, 7, 6, 5, 4, 3, 2, 1]], dtype=torch.uint8), bits=4, dim=1)
    expect((word.tolist(), word.dtype), ([[0x12345678]], torch.int32))


@invariant(3)
def test_both_ways_along_each_dimension():
    numbers = torch.arange(16 * 8 * 16).view(16, 8, 16) * 7 % 16
    for dim in range(3):
        expect(unpack(pack(numbers, bits=4, dim=dim), bits=4, dim=dim).tolist(), numbers.tolist())


@invariant(3)
def test_what_is_packed_already_stays():
    first = pack(torch.tensor([[1, 2, 3, 4]]), bits=8, dim=1)
    pack(torch.tensor([[5, 6, 7, 8]]), bits=8, dim=1)
    expect(first.tolist(), [[0x04030201]])


@invariant(4)
def test_the_highest_bit():
    numbers = torch.tensor([[15, 5, 10, 2, 8, 12, 7, 11], [0, 0, 0, 0, 0, 0, 0, 8], [15] * 8])
    expect(pack(numbers, bits=4, dim=1).flatten().tolist(), words(0xB7C82A5F, 0x80000000, 0xFFFFFFFF).tolist())


@invariant(5)
def test_the_last_word_is_filled_up():
    numbers = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]])
    expect(pack(numbers, bits=4, dim=1).tolist(), [words(0x87654321, 0x0000CBA9).tolist()])
    expect(pack(numbers.T, bits=8, dim=0)[:, 0].tolist(), [0x04030201, 0x08070605, 0x0C0B0A09])


@invariant(5)
def test_fewer_than_a_word():
    numbers = torch.tensor([[1], [2]])
    expect(pack(numbers, bits=4, dim=0).tolist(), [[0x21]])
    expect(numbers.tolist(), [[1], [2]])


@invariant(5)
def test_a_word_in_the_middle_is_filled_up():
    numbers = torch.tensor([[[1, 4], [2, 5], [3, 6]]])
    expect(pack(numbers, bits=8, dim=1).tolist(), [[[0x00030201, 0x00060504]]])
