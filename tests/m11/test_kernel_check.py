"""A user's first minute on a GPU that nobody has tried, on the stand-in for one: an engine finds the kernels that raise
or are wrong there, says so, and answers without them."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from folovllm import LLMEngine, SamplingParams
from folovllm.distributed.parallel_state import GroupCoordinator, Peer
from folovllm.engine.builder import kernel_cases, kernel_check
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.layers.kernels import add_rms_norm, experts, matmul, norm_rotary, silu_mul
from folovllm.layers.linear import PLAIN
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.linear import QuantizedLinear, QuantizedLinears
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.models.registry import decoder_spec
from folovllm.sample.kernels import sampler
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_model, our_warnings, some
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine, serve

pytest.importorskip("triton")
from folovllm.attention.kernels import paged_decode, paged_prefill, store_kv_fp8

pytestmark = pytest.mark.slow
SMALL = {"max_num_seqs": 2, "max_model_len": 16, "num_kv_blocks": 8}
PROMPT, GREEDY = [5, 6, 7], SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture
def checked_cuda(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> FakeCuda:
    monkeypatch.setenv("FOLOVLLM_CHECK_KERNELS", "yes")
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)  # to caplog
    caplog.set_level(logging.WARNING)
    # A GPU with room for four programs, which the interpreter runs one by one: eight of them are many.
    monkeypatch.setattr(paged_decode, "places_of", lambda device: 4)
    monkeypatch.setattr(kernel_cases, "MANY", 8)
    return fake_cuda


class Raises:
    """In a kernel's place, as one that this machine's assembler refuses."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("PTX assembler: unknown target\nand ninety lines more")

        return launch


def fail_where(monkeypatch: pytest.MonkeyPatch, fails: Callable[[torch.Tensor], bool]) -> None:
    """The kernel of SwiGLU is refused where `fails` says so of its result."""
    kernel = silu_mul._silu_mul_kernel

    class Chosen:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **options: (Raises() if fails(args[1]) else kernel)[grid](*args, **options)

    monkeypatch.setattr(silu_mul, "_silu_mul_kernel", Chosen())


class Doubled:
    """In a kernel's place: it, with twice as much in the argument `result`."""

    def __init__(self, kernel: Any, result: str) -> None:
        self.kernel, self.place = kernel, kernel.arg_names.index(result)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.kernel[grid](*args, **kwargs)
            args[self.place].mul_(2)

        return launch


def tokens_of(engine: LLMEngine) -> list[int]:
    return serve(engine, [(PROMPT, GREEDY)])[0]["outputs"][0]["token_ids"]


def parts_of(engine: LLMEngine) -> dict[str, Any]:
    ops, runner = engine.runner.model.model.ops, engine.runner
    return {"backend": runner.kv_cache.backend.name, "graphs": runner.graphs is not None,
            "norm_rotary": ops.norm_rotary, "draws": runner.sampling.uses_kernel}  # fmt: skip


def test_where_all_is_well_nothing_is_said_and_nothing_is_replaced(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(small_oracle, **SMALL)
    assert {"_paged_decode", "_paged_prefill", "_add_rms_norm_kernel", "_norm_rotary_kernel",
            "_silu_mul_kernel", "_sample_kernel"} <= set(checked_cuda.variants)  # fmt: skip
    assert len(checked_cuda.variants["_paged_decode"]) >= 2  # whole, and in splits
    assert our_warnings(caplog) == []
    kernels = {"backend": "triton", "graphs": True, "norm_rotary": norm_rotary.norm_rotary, "draws": True}
    assert parts_of(engine) == kernels
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)


def test_each_kind_of_a_gguf_files_layers_is_checked_once() -> None:
    kinds = {"Q4_0": (4, 32, True), "Q4_K": (4, 32, False), "Q4_1": (4, 32, False), "Q6_K": (8, 16, True)}
    layers = {name: QuantScheme("gguf", *kind, blocks=(name,)) for name, kind in kinds.items()}
    method, spec = Mock(wraps=QuantizedLinear), decoder_spec(make_hf_model("llama", hidden_size=64).config)
    ops = LayerOps(QuantizedLinears(QuantScheme("gguf", 8, 32, False, layers=layers), method, PLAIN))
    kernel_cases._product_cases(torch.randn, spec)["linear"](Mock(ops=ops))
    made = [call.args[0] for call in method.call_args_list]
    assert [(each.bits, each.group_size, each.symmetric) for each in made] == list(dict.fromkeys(kinds.values()))


FAULTS = {
    "stored": (norm_rotary, "_norm_rotary_kernel", "cache_ptr", "norm_rotary", {"norm_rotary": LayerOps().norm_rotary}),
    "decode": (
        paged_decode,
        "_paged_decode",
        "out_ptr",
        "decode in splits",
        {"backend": "paged_torch", "graphs": False},
    ),
    "prefill": (paged_prefill, "_paged_prefill", "out_ptr", "prefill of 32 tokens", {"backend": "paged_torch"}),
    "norm": (add_rms_norm, "_add_rms_norm_kernel", "out_ptr", "rms_norm", {"backend": "triton", "graphs": True}),
    "rotary": (norm_rotary, "_norm_rotary_kernel", "heads_ptr", "norm_rotary", {"norm_rotary": LayerOps().norm_rotary}),
    "silu": (silu_mul, "_silu_mul_kernel", "out_ptr", "silu_mul", {"backend": "triton", "graphs": True}),
    "draw": (sampler, "_sample_kernel", "token_ptr", "draw", {"backend": "triton", "graphs": True, "draws": False}),
}


@pytest.mark.parametrize(
    ("name", "fault"), some([("draw", "raises"), ("stored", "raises"), *((name, "is wrong") for name in FAULTS)])
)
def test_a_kernel_that_is_no_good_here_is_named_and_the_engine_answers_without_it(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch, name: str, fault: str
) -> None:
    module, kernel, result, said, parts = FAULTS[name]
    found = getattr(module, kernel)
    monkeypatch.setattr(module, kernel, Raises() if fault == "raises" else Doubled(found, result))
    engine = make_engine(small_oracle, **SMALL)
    how = "fails with RuntimeError: PTX assembler: unknown target$" if fault == "raises" else "is off by [0-9.e+-]+ of"
    assert len(our_warnings(caplog)) == 1
    assert re.search(
        f"torch takes the place of a kernel, which is slower: the kernel '{said}' {how}", caplog.text, re.M
    )
    assert parts_of(engine) == parts_of(engine) | parts
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)


@pytest.mark.exhaustive
def test_decodes_turn_their_queries_elsewhere_where_they_do_it_wrong(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = paged_decode._paged_decode

    class Fused(Doubled):
        def __getitem__(self, grid: Any) -> Any:
            doubled = super().__getitem__(grid)
            return lambda *args, **kwargs: (doubled if kwargs["FUSED"] else kernel[grid])(*args, **kwargs)

    monkeypatch.setattr(paged_decode, "_paged_decode", Fused(kernel, "out_ptr"))
    engine = make_engine(small_oracle, **SMALL)
    assert "the kernel 'fuses_decode' is off by" in caplog.text
    assert parts_of(engine) == parts_of(engine) | {"backend": "triton", "graphs": True}
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["_experts_kernel", None, "combine_kernel", "_route_kernel"])
def test_experts_go_one_by_one_and_into_no_graph_where_their_kernel_is_wrong(
    tmp_path: Path, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch, fault: str | None
) -> None:
    oracle = Oracle(tmp_path, "qwen3_moe", num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1)
    if fault is not None:
        out = "weights_ptr" if fault == "_route_kernel" else "out_ptr"
        monkeypatch.setattr(experts, fault, Doubled(getattr(experts, fault), out))
    engine = make_engine(oracle, **SMALL)
    assert len(our_warnings(caplog)) == (fault is not None)
    assert ("the kernel 'experts' is off" in caplog.text) == (fault is not None)
    assert (engine.runner.graphs is None) == (fault is not None)
    assert tokens_of(engine) == oracle.greedy(PROMPT, 4)


def test_steps_are_launched_one_by_one_where_a_replay_is_wrong(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)
    engine = make_engine(small_oracle, **SMALL)
    assert "slower: a CUDA graph's replay is off by nan" in caplog.text
    assert parts_of(engine)["graphs"] is False
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)


@pytest.mark.exhaustive
def test_a_draft_model_does_without_the_kernels_that_are_wrong_on_its_own_shape(
    tmp_path: Path, small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    draft = Oracle(tmp_path, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=24)
    fail_where(monkeypatch, lambda out: out.shape[-1] == 24)
    speculative = {"method": "draft_model", "model": str(draft.folder), "num_speculative_tokens": 2}
    engine = make_engine(small_oracle, speculative_config=speculative, **SMALL)
    assert len(our_warnings(caplog)) == 1
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)


def test_ranks_leave_out_what_is_wrong_on_one_of_them(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks as threads. One of them has a kernel that fails, and another one that finds all of its own right."""
    config = config_for_llm(str(small_oracle.folder), dtype="float32", device="cuda", tensor_parallel_size=2)
    hf_config, device, dtype = load_hf_config(config.model_config), torch.device("cuda:0"), torch.float32
    spec, pair, turn = decoder_spec(hf_config), socket.socketpair(), threading.Lock()
    chosen = choose_components(config, hf_config, dtype, device, spec)
    main, find = threading.current_thread(), kernel_check._find_fault
    fail_where(monkeypatch, lambda out: threading.current_thread() is not main)

    def find_in_turn(*given: Any) -> str | None:
        with turn:  # the interpreter takes one launch at a time
            return find(*given)

    monkeypatch.setattr(kernel_check, "_find_fault", find_in_turn)

    def check(rank: int) -> Components:
        group = GroupCoordinator(rank, 2, {1 - rank: Peer(pair[rank])}, Mock())
        return kernel_check.check_kernels(chosen, config, spec, dtype, device, group)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(check, 1)
        assert check(0) == other.result() != chosen
    assert sorted(line.partition("'silu_mul' ")[2] for line in our_warnings(caplog)) == [
        "fails with RuntimeError: PTX assembler: unknown target", "is no good on another rank"
    ]  # fmt: skip


def test_a_backend_that_was_asked_for_by_name_is_not_replaced(
    small_oracle: Oracle, checked_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_prefill, "_paged_prefill", Raises())
    message = (
        "^attention_backend cannot be what was asked for on cuda:0: the kernel 'prefill of 32 tokens' fails .*; leave "
    )
    with pytest.raises(ValueError, match=message):
        make_engine(small_oracle, attention_backend="triton", **SMALL)


@pytest.mark.exhaustive
def test_without_the_check_a_wrong_kernel_is_used(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLOVLLM_CHECK_KERNELS", "no")
    monkeypatch.setattr(silu_mul, "_silu_mul_kernel", Doubled(silu_mul._silu_mul_kernel, "out_ptr"))
    engine = make_engine(small_oracle, **SMALL)
    assert our_warnings(caplog) == []
    assert tokens_of(engine) != small_oracle.greedy(PROMPT, 4)


def test_batch_invariance_is_refused_where_its_product_is_wrong(
    small_oracle: Oracle, checked_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "_linear_kernel", Doubled(matmul._linear_kernel, "out_ptr"))
    message = (
        "^batch_invariant cannot be what was asked for on cuda:0: the kernel 'linear' is off by .*; leave batch_inv"
    )
    with pytest.raises(ValueError, match=message):
        make_engine(small_oracle, batch_invariant=True, **SMALL)


def test_a_cache_of_8_bits_is_read_by_torch_where_its_kernel_is_wrong(
    small_oracle: Oracle, checked_cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_kv_fp8, "_store_kv_fp8", Raises())
    engine = make_engine(small_oracle, kv_cache_dtype="fp8", **SMALL)
    assert [message.partition("'store_kv' fails")[1] for message in our_warnings(caplog)] == ["'store_kv' fails"]
    assert parts_of(engine)["backend"] == "paged_fp8"
    assert len(tokens_of(engine)) == 4
