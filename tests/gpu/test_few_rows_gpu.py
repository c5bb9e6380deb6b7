"""The product of few rows on the GPU: against float64 at Qwen3-0.6B's and Qwen3-8B's sizes, launched before the kernels
in front of it are over, and whole models against those without it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from folovllm import LLM, SamplingParams
from folovllm.layers.norm import RMSNorm

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device

SHAPES = {"0.6B": (1024, 2048, 3072), "8B": (4096, 4096, 12288)}  # hidden, heads, intermediate
TOLERANCE = 2**-6  # of the largest entry: x * w and the result are rounded


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.isfinite().all()
    assert float((got.double() - want).abs().max() / want.abs().max()) < TOLERANCE


@pytest.mark.parametrize("num_rows", [1, 8, 9, 16, 30, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layers_products_are_those_of_float64(shape: str, num_rows: int) -> None:
    from folovllm.layers.kernels.few_rows import few_rows

    torch.manual_seed(0)
    hidden, heads, intermediate = SHAPES[shape]
    x, norm = normal(num_rows, hidden), RMSNorm(hidden, 1e-6)
    norm.weight.data = normal(hidden)
    gate_up, down, attended = normal(2 * intermediate, hidden), normal(hidden, intermediate), normal(num_rows, heads)
    o, stream = normal(hidden, heads), x.clone()
    before = F.rms_norm(x.double(), (hidden,), norm.weight.double(), 1e-6)
    gate, up = (before @ gate_up.double().T).chunk(2, dim=1)
    assert_near(few_rows(x, gate_up, norm=norm), before @ gate_up.double().T)
    assert_near(few_rows(x, gate_up, norm=norm, gated=True), F.silu(gate) * up)
    few_rows(attended, o, add_to=stream)
    assert_near(stream, x.double() + attended.double() @ o.double().T)
    middle = (F.silu(gate) * up).bfloat16()
    assert_near(few_rows(middle, down, add_to=x.clone()), x.double() + middle.double() @ down.double().T)


@pytest.mark.parametrize("num_rows", [1, 16, 32, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_with_codes_and_what_is_around_them_are_those_of_float64(shape: str, num_rows: int) -> None:
    from folovllm.layers.kernels.add_rms_norm import rms_norm
    from folovllm.layers.quantization.codes import round_to_nearest
    from folovllm.layers.quantization.kernels.linear_codes import linear_codes, pack_codes

    torch.manual_seed(0)
    hidden, _, intermediate = SHAPES[shape]
    x, stream, norm = normal(num_rows, hidden), normal(num_rows, hidden), RMSNorm(hidden, 1e-6, rms_norm)
    norm.weight.data = normal(hidden)
    gate_up, down = (
        round_to_nearest(normal(*size).float(), bits=4, group_size=128, symmetric=False)
        for size in ((2 * intermediate, hidden), (hidden, intermediate))
    )
    gate, up = (x.double() @ gate_up.dequantize().double().T).chunk(2, dim=1)
    middle = linear_codes(x, pack_codes(gate_up, 4), gated=True)
    assert_near(middle, F.silu(gate) * up)
    want = stream.double() + middle.double() @ down.dequantize().double().T
    got = linear_codes(middle, pack_codes(down, 4), into=(norm, stream))
    assert_near(got, F.rms_norm(want, (hidden,), norm.weight.double(), 1e-6))
    assert_near(stream, want)


@pytest.mark.parametrize("num_rows", [8, 64])
def test_a_chain_in_a_graph_is_the_same_chain_with_waits_between(num_rows: int) -> None:
    """Each product is launched while those before it run: what it reads must be there, and what it writes over is done
    with."""
    from folovllm.layers.kernels.few_rows import few_rows

    torch.manual_seed(0)
    hidden, _, intermediate = SHAPES["0.6B"]
    norm = RMSNorm(hidden, 1e-6)
    norm.weight.data = torch.ones_like(normal(hidden))
    layers = [(normal(2 * intermediate, hidden) / 32, normal(hidden, intermediate) / 64) for _ in range(20)]
    start = normal(num_rows, hidden)

    def chain(x: torch.Tensor, *, waits: bool) -> torch.Tensor:
        for gate_up, down in layers:
            middle = few_rows(x, gate_up, norm=norm, gated=True)
            if waits:
                torch.cuda.synchronize()
            few_rows(middle, down, add_to=x)
            if waits:
                torch.cuda.synchronize()
        return x

    want = chain(start.clone(), waits=True)
    x, graph = torch.empty_like(start), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(start)
        chain(x, waits=False)
    for _ in range(50):
        x.fill_(torch.nan)
        graph.replay()
        assert torch.equal(x, want)


def test_an_engine_chooses_it_and_says_nearly_what_it_says_without() -> None:
    """The embedded model in bfloat16: the first token and how likely it is."""
    params, found = SamplingParams(temperature=0, max_tokens=1, logprobs=1), []
    for takes_it in (True, False):
        llm = LLM(dtype="bfloat16", max_num_seqs=8)
        ops = llm.engine.runner.model.model.ops
        if not hasattr(ops, "most_rows"):
            pytest.skip("this GPU's products are the library's")
        assert ops.most_rows > 0
        if not takes_it:
            ops.most_rows = 0
        (output,) = llm.generate(["Once upon a time"], params)
        ((logprob,),) = [[each.logprob for each in entry.values()] for entry in output.outputs[0].logprobs]
        found.append((output.outputs[0].token_ids, logprob))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=0.05)
