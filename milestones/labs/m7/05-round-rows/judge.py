import torch

from folovllm.layers.linear import Linear
from folovllm.layers.quantization.linear import QuantizedLinear, round_rows
from folovllm.model_loader.quant_scheme import ONLINE
from lab_judge import expect, expect_close, invariant


def layer_of(weight, bias=None):
    layer = Linear(weight.shape[1], len(weight), bias=bias is not None)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer


@invariant(1)
def test_each_row_has_its_own_scale():
    x = torch.tensor([[1.27, -0.5], [-254.0, 3.0], [0.0, 12.7]])
    _, scale = round_rows(x)
    expect_close(scale, torch.tensor([[0.01], [2.0], [0.1]]))


@invariant(2)
def test_each_number_gets_its_nearest_code():
    codes, _ = round_rows(torch.tensor([[127.0, -127.0, 3.4, 3.6, -3.6, 0.4]]))
    expect(codes.tolist(), [[127.0, -127.0, 3.0, 4.0, -4.0, 0.0]])
    codes, _ = round_rows(torch.tensor([[254.0, 1.2], [12.7, 1.2]]))
    expect(codes.tolist(), [[127.0, 1.0], [127.0, 12.0]])


@invariant(2)
def test_what_is_given_stays_as_it_is():
    x = torch.tensor([[254.0, -1.2]])
    round_rows(x)
    expect(x, torch.tensor([[254.0, -1.2]]))


@invariant(3)
def test_a_row_of_zeros():
    codes, scale = round_rows(torch.tensor([[0.0, 0.0], [1.27, 0.02]]))
    expect(codes.tolist(), [[0.0, 0.0], [127.0, 2.0]])
    expect(scale[0].item(), 0.0)


@invariant(4)
def test_a_row_of_bfloat16():
    x = torch.tensor([[0.3, 0.2, 0.1, 0.29]], dtype=torch.bfloat16)
    codes, scale = round_rows(x)
    expect((codes.dtype, scale.dtype), (torch.float32, torch.float32))
    by_hand = [round(number / (x[0, 0].item() / 127)) for number in x[0].tolist()]
    expect(codes[0].tolist(), [float(code) for code in by_hand])


@invariant(4)
def test_a_scale_of_bfloat16_is_not_rounded():
    _, scale = round_rows(torch.tensor([[1.0, 0.5]], dtype=torch.bfloat16))
    expect_close(scale.double(), torch.tensor([[1 / 127]], dtype=torch.float64), atol=1e-8)


@invariant(5)
def test_the_product_is_of_what_the_codes_mean():
    weight, x = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[12.7, 0.26], [2.54, -1.0]])
    out = QuantizedLinear(ONLINE["w8a8"], "layer").apply(layer_of(weight), x)
    expect_close(out, torch.tensor([[12.7, 13.0], [2.54, 1.54]]))


@invariant(5)
def test_the_bias_is_added():
    weight, bias, x = torch.eye(2), torch.tensor([10.0, 20.0]), torch.tensor([[127.0, 3.4]])
    for name, second in (("w8a8", 23.0), ("w4a16", 23.4)):
        out = QuantizedLinear(ONLINE[name], "layer").apply(layer_of(weight, bias), x)
        expect_close(out, torch.tensor([[137.0, second]]))


@invariant(5)
def test_the_dtype_stays():
    x = torch.tensor([[1.0, 0.5]], dtype=torch.bfloat16)
    for name in ("w8a8", "w4a16"):
        out = QuantizedLinear(ONLINE[name], "layer").apply(layer_of(torch.eye(2, dtype=torch.bfloat16)), x)
        expect(out.dtype, torch.bfloat16)
        expect_close(out.float(), torch.tensor([[1.0, 0.5]]), atol=0.01)


@invariant(5)
def test_codes_are_widened_in_float32_and_rounded_once():
    x = torch.tensor([[3.0, 3 * 3 / 127, 6 * 3 / 127]], dtype=torch.bfloat16)
    out = QuantizedLinear(ONLINE["w8a8"], "layer").apply(layer_of(torch.eye(3, dtype=torch.bfloat16)), x)
    expect(out, torch.tensor([[127 * 3 / 127, 3 * 3 / 127, 6 * 3 / 127]]).to(torch.bfloat16))


@invariant(5)
def test_each_step_has_scales_of_its_own():
    layer, scheme = layer_of(torch.eye(2)), QuantizedLinear(ONLINE["w8a8"], "layer")
    outs = [scheme.apply(layer, x).tolist() for x in (torch.tensor([[127.0, 3.0]]), torch.tensor([[254.0, 4.0]]))]
    expect(outs, [[[127.0, 3.0]], [[254.0, 4.0]]])


@invariant(5)
def test_each_product_is_one_of_its_own():
    layer, scheme = layer_of(torch.eye(2)), QuantizedLinear(ONLINE["w8a8"], "layer")
    first, second = (scheme.apply(layer, torch.tensor([[127.0, number]])) for number in (3.0, 4.0))
    expect([first.tolist(), second.tolist()], [[[127.0, 3.0]], [[127.0, 4.0]]])


@invariant(5)
def test_weights_of_four_bits_may_have_activations_of_eight():
    out = QuantizedLinear(ONLINE["w4a8"], "layer").apply(layer_of(torch.eye(2)), torch.tensor([[127.0, 3.4]]))
    expect_close(out, torch.tensor([[127.0, 3.0]]))
