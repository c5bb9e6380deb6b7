from folovllm.mine.bits import choose
from lab_judge import expect, invariant, measure
from support import loss, quantised, read_tokens, read_weights

LIMIT = 600_000  # bytes. In bfloat16 the model has 2,362,112


@invariant(1)
def test_two_to_eight_bits_and_whole_groups():
    bits, group_size = choose("layers.0.mlp.down_proj.weight", 128, 384)
    expect((2 <= bits <= 8, 384 % group_size), (True, 0))


@invariant(2)
def test_the_bytes():
    size = quantised(read_weights(), choose)[1]
    expect(max(size, LIMIT), LIMIT)


@invariant(3)
def test_the_loss():
    weights = quantised(read_weights(), choose)[0]
    measure(round(loss(weights, read_tokens()), 3), at_most=0.8)
