"""Models with experts in whole engines: chunks, blocks found again, preemption, forks, GPUs; the tokens are Hugging
Face's, one by one, in float32. Faults that are planted change them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.layers import moe
from folovllm.layers.moe import Groups, Routing
from folovllm.models import one_call
from folovllm.models.decoder import DecoderForCausalLM
from tests.fake_cuda import FakeCuda
from tests.helpers import some
from tests.m3.oracle import Oracle
from tests.m4.cpu_target import NEEDS_KERNELS
from tests.m5.support import serve, token_ids
from tests.m6.support import caching_engine
from tests.m6.test_parity_m6 import BLOCK, CHUNKS, PRESSURES, asked_greedily, prompts_that_begin_alike
from tests.m9.support import RankThread

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def engine_of(oracle: Oracle, **settings: Any) -> Any:
    return caching_engine(oracle.folder, max_model_len=64, block_size=BLOCK, **settings)


@pytest.mark.parametrize(("pressure", "chunk"), some([("recompute", "7"), ("swap", "16")]))
def test_greedy_tokens_are_hugging_faces(oracle: Oracle, pressure: str, chunk: str) -> None:
    asked = asked_greedily()
    expected = [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    engine = engine_of(oracle, **PRESSURES[pressure], **CHUNKS[chunk])
    for seed in range(2):  # cold and warm
        assert token_ids(serve(engine, asked, seed)) == expected
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_cache_hits > 0


def test_siblings_that_can_only_say_what_is_likeliest(oracle: Oracle) -> None:
    asked = [(prompt, SamplingParams(n=3, top_k=1, max_tokens=8)) for prompt in prompts_that_begin_alike()]
    outputs = serve(engine_of(oracle, **PRESSURES["recompute"], **CHUNKS["7"]), asked)
    assert token_ids(outputs) == [[oracle.greedy(prompt, 8)] * 3 for prompt, _ in asked]


@pytest.mark.parametrize("kernels", ["yes", "no"])
def test_log_probabilities_are_hugging_faces(oracle: Oracle, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", kernels)
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=0)
    (output,) = serve(engine_of(oracle), [([5, 9, 17, 200, 3], params)])
    oracle.assert_logprobs(output, tolerance=1e-5)


@NEEDS_KERNELS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_the_batch_where_that_is_asked_for(oracle: Oracle, dtype: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=1)
    engine = LLM(
        str(oracle.folder), dtype=dtype, batch_invariant=True, skip_tokenizer_init=True, max_model_len=64,
        num_kv_blocks=60, max_num_batched_tokens=9, enable_chunked_prefill=True,
    ).engine  # fmt: skip
    asked = [(prompt, params) for prompt in prompts_that_begin_alike()[:4]]

    def bits(outputs: list[Any]) -> list[Any]:
        return [[list(map(repr, entry.values())) for entry in output.outputs[0].logprobs] for output in outputs]

    assert bits(serve(engine, asked)) == [bits(serve(engine, [one]))[0] for one in asked]


def test_twins_that_tie_at_the_edge_of_the_choice_change_nothing(tmp_path: Any) -> None:
    """Experts 0 to 3 are one expert four times over: which of them is taken is open, and what comes out is not."""
    oracle = Oracle(tmp_path, "qwen3_moe")
    with torch.no_grad():
        for layer in oracle.hf.model.layers:
            for weight in (layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                weight[1:4] = weight[0]
    oracle.hf.save_pretrained(tmp_path)
    prompts = prompts_that_begin_alike()[:4]
    outputs = serve(engine_of(oracle, **CHUNKS["7"]), [(prompt, GREEDY) for prompt in prompts])
    assert token_ids(outputs) == [[oracle.greedy(prompt, 8)] for prompt in prompts]


@NEEDS_KERNELS
@pytest.mark.parametrize("quantization", ["w4a16", "w8a8"])
def test_experts_are_rounded_and_the_router_is_not(qwen: Oracle, quantization: str) -> None:
    """Both ways to compute with the codes mean the same."""
    llm = qwen.make_llm(quantization=quantization)
    layer = llm.engine.runner.model.model.layers[0].mlp
    assert layer.gate.weight.dtype == torch.float32
    assert layer.experts[3].down_proj.weight.dtype == torch.uint8
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLOVLLM_CPU_KERNELS", "no")
        plain = qwen.make_llm(quantization=quantization)
    prompts = prompts_that_begin_alike()[:3]
    said = [[out.outputs[0].token_ids for out in one.generate(prompts, GREEDY, use_tqdm=False)] for one in (llm, plain)]
    assert said[0] == said[1]


@pytest.mark.parametrize("size", some([2, 4]))
def test_ranks_that_have_some_columns_of_each_expert_say_the_same(
    oracle: Oracle, rank_threads: list[RankThread], size: int
) -> None:
    asked = asked_greedily()[:4]
    engine = engine_of(oracle, tensor_parallel_size=size, **CHUNKS["7"])
    assert token_ids(serve(engine, asked)) == [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    assert len(rank_threads) == size - 1
    mine = engine.runner.model.model
    assert mine.model.layers[0].mlp.experts[0].down_proj.in_features == mine.decoder_spec.experts.size
    assert mine.decoder_spec.experts.size * size == (96 if mine.decoder_spec.names else 24)


def test_rounded_experts_are_cut_as_one_rank_rounds_them(tmp_path: Any, rank_threads: list[RankThread]) -> None:
    oracle = Oracle(
        tmp_path,
        "qwen2_moe",
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        intermediate_size=256,
        head_dim=64,
    )
    asked = asked_greedily()[:3]
    one, two = (
        token_ids(serve(engine_of(oracle, quantization="w4a16", tensor_parallel_size=size), asked)) for size in (1, 2)
    )
    assert one == two


# Faults of the layers as modules, and then those of all layers in one call.


def route_with(patch: pytest.MonkeyPatch, route: Callable[..., Routing]) -> None:
    patch.setattr(moe.Experts, "route", staticmethod(route))


def fault_no_weights(patch: pytest.MonkeyPatch) -> None:
    """They are not divided by their sum."""
    route_with(patch, lambda logits, top_k, renormalize: moe.route(logits, top_k, renormalize=False))


def fault_swapped_experts(patch: pytest.MonkeyPatch) -> None:
    def swapped(*args: Any, **kwargs: Any) -> Routing:
        weights, experts = moe.route(*args, **kwargs)
        return Routing(weights, experts.where(experts > 1, 1 - experts))

    route_with(patch, swapped)


def fault_other_order(patch: pytest.MonkeyPatch) -> None:
    """Two rows that are side by side are put back in one another's place."""
    right = moe.put_back

    def exchanged(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
        order = groups.order.clone()
        order[:2] = groups.order[:2].flip(0)
        return right(rows, Groups(order, groups.ends), weights)

    patch.setattr(moe, "put_back", exchanged)


def fault_router_in_bfloat16(patch: pytest.MonkeyPatch) -> None:
    route_with(patch, lambda logits, *args, **kwargs: moe.route(logits.bfloat16(), *args, **kwargs))


def fault_swapped_slots(patch: pytest.MonkeyPatch) -> None:
    """The weights of two experts are loaded into each other's place."""
    right, other = DecoderForCausalLM.checkpoint_slots, {"0": "1", "1": "0"}

    def swapped(model: Any) -> Any:
        for name, slot in right(model):
            yield re.sub(r"(?<=\.experts\.)[01](?=\.)", lambda found: other[found[0]], name), slot

    patch.setattr(DecoderForCausalLM, "checkpoint_slots", swapped)


def fault_in_the_table(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], None]) -> None:
    right = one_call._experts

    def changed(mlp: Any) -> Any:
        found, products = right(mlp)
        change(found, products)
        return found, products

    patch.setattr(one_call, "_experts", changed)


def fault_no_weights_in_one_call(patch: pytest.MonkeyPatch) -> None:
    fault_in_the_table(patch, lambda found, _: setattr(found, "renormalize", 0))


def fault_swapped_experts_in_one_call(patch: pytest.MonkeyPatch) -> None:
    """Each has as many addresses in the table."""

    def swap(found: Any, products: Any) -> None:
        each = len(products) // found.count
        products[: 2 * each] = [*products[each : 2 * each], *products[:each]]

    fault_in_the_table(patch, swap)


def fault_one_expert_fewer_in_one_call(patch: pytest.MonkeyPatch) -> None:
    fault_in_the_table(patch, lambda found, _: setattr(found, "top_k", found.top_k - 1))


FAULTS = [
    (fault_no_weights, True), (fault_swapped_experts, True), (fault_other_order, True),
    (fault_router_in_bfloat16, True), (fault_swapped_slots, False),
    pytest.param(fault_no_weights_in_one_call, False, marks=NEEDS_KERNELS),
    pytest.param(fault_swapped_experts_in_one_call, False, marks=NEEDS_KERNELS),
    pytest.param(fault_one_expert_fewer_in_one_call, False, marks=NEEDS_KERNELS),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "eager"), FAULTS)
def test_a_planted_fault_changes_what_is_said(
    qwen: Oracle, fault: Any, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, or at least how likely they are: see the tolerance of the test on log-probabilities."""
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=0)
    asked = [(prompt, params) for prompt in prompts_that_begin_alike()[:4]]

    def check() -> None:
        for output in serve(engine_of(qwen, enforce_eager=eager), asked):
            qwen.assert_logprobs(output, tolerance=1e-5)

    check()
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fixed_order")
@pytest.mark.parametrize("invariant", [False, True])
def test_a_gpus_graphs_serve_experts_that_were_chosen_after_the_recording(
    qwen: Oracle, fake_cuda: FakeCuda, invariant: bool
) -> None:
    llm = LLM(
        str(qwen.folder), device="cuda", dtype="float32", skip_tokenizer_init=True, max_num_seqs=2, max_model_len=16,
        num_kv_blocks=8, block_size=4, max_num_batched_tokens=8, swap_space=0.001, batch_invariant=invariant,
    )  # fmt: skip
    prompts = [[5, 9, 17], [7, 7, 1, 30, 2]]
    fake_cuda.reset_counts()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [qwen.greedy(prompt, 4) for prompt in prompts]
    assert fake_cuda.launches["graph"] > 0
    assert fake_cuda.compiled == []
