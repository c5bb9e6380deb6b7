"""Adapters on the stand-in for a GPU: steps with some are replayed from graphs of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, LLMEngine
from folovllm.core.draft_length import DraftLength
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine import llm_engine
from folovllm.engine.builder import kernel_cases
from folovllm.engine.builder.components import choose_components
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.models.registry import decoder_spec
from folovllm.worker.follower import Command, Follower
from folovllm.worker.model_runner import make_mover
from folovllm.worker.prompt_graph import LoRABuffer
from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.helpers import make_hf_model
from tests.m4.cuda_support import waits_of_launches
from tests.m9.test_graphs_with_ranks import Repeated, Told, clear
from tests.m12.conftest import Choir, make_choir
from tests.m12.support import Asked, serve

pytest.importorskip("triton")
from folovllm.layers.kernels import lora as kernels
from folovllm.layers.triton_ops import TritonLoRAWeights

SIZES = {"max_model_len": 16, "num_kv_blocks": 12, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 16}
MIXED: Asked = [("all", [3, 4, 5], 3), (None, [9, 8, 7, 6], 3), ("few", [2, 2], 3)]
ALONE: Asked = [(None, [1, 2, 3], 3)]


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[FakeCuda]:
    with fake_cuda_machine(total_bytes=2 << 30, prompt_graphs=getattr(request, "param", False)) as machine:
        yield machine


@pytest.fixture
def small_choir(tmp_path: Path) -> Choir:
    hf = make_hf_model("qwen3", num_hidden_layers=1)
    hf.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    return make_choir(tmp_path, hf)


def cuda_engine(choir: Choir, **options: Any) -> LLMEngine:
    options = {"dtype": "float32", "swap_space": 0.001, "enable_lora": True, "max_loras": 2, **SIZES, **options}
    return LLM(str(choir.folder), device="cuda", skip_tokenizer_init=True, **options).engine


@pytest.mark.parametrize("machine", [False, pytest.param(True, marks=pytest.mark.exhaustive)], indirect=True)
def test_voices_on_a_gpu_are_the_merged_models_and_are_replayed(
    small_choir: Choir, machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    choir, engine, replayed = small_choir, cuda_engine(small_choir), list[bool]()
    load = LoRABuffer.load
    monkeypatch.setattr(LoRABuffer, "load", lambda self, lora: replayed.append(load(self, lora)) or replayed[-1])
    machine.reset_counts()
    with waits_of_launches(engine, machine) as waits:
        assert serve(engine, MIXED, choir.requests) == [choir.greedy(*each) for each in MIXED]
    assert {place.split()[-1] for _, place in waits} == {"put"}  # of adapters into slots
    assert machine.launches["graph"] == len(replayed)
    assert True in replayed
    has_prompt_graphs = len(engine.runner.graphs.prompts.shapes) > 0
    assert ("_shrink_kernel" in machine.launches) is not has_prompt_graphs  # prompts alone were launched one by one
    replayed.clear()
    assert serve(engine, ALONE, choir.requests) == [choir.greedy(*each) for each in ALONE]
    assert set(replayed) == {False}


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", [True], indirect=True)
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_steps_that_verify_drafts_are_replayed_with_adapters(
    small_choir: Choir, machine: FakeCuda, method: str
) -> None:
    """The draft model has none, and computes the same tokens in graphs of its own."""
    drafts: dict[str, Any] = {"method": method, "num_speculative_tokens": 2}
    drafts |= {"model": str(small_choir.folder)} if method == "draft_model" else {"prompt_lookup_min": 1}
    engine = cuda_engine(small_choir, speculative_config=drafts)
    engine.scheduler.drafts.length = DraftLength(2, None)  # whatever pays off
    machine.reset_counts()
    asked: Asked = [("all", [3, 4, 5], 6), (None, [9, 8, 7, 6], 6)]
    assert serve(engine, asked, small_choir.requests) == [small_choir.greedy(*each) for each in asked]
    assert not {"_shrink_kernel", "_paged_prefill", "_paged_decode"} & set(machine.launches)
    assert engine.scheduler.drafts.num_draft_tokens > 0


class Kept(Told):
    """Names of matrices are in its messages, too."""

    def lead(self, message: list[Any], x: torch.Tensor | None, work: Callable[[], Any]) -> Any:
        self.messages.append((message, None if x is None else x.clone()))
        return GroupCoordinator.lead(self, message, x, work)


@pytest.mark.exhaustive
def test_other_ranks_replay_the_same_adapters(
    small_choir: Choir, machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of one, as in tests/m9/test_graphs_with_ranks.py, whose messages another runner repeats afterwards."""
    choir, group = small_choir, Kept()
    with monkeypatch.context() as patch:
        patch.setattr(llm_engine, "start_ranks", lambda *args: group)
        led = cuda_engine(choir)
    clear(led.runner.kv_cache)
    assert serve(led, MIXED, choir.requests) == [choir.greedy(*each) for each in MIXED]
    assert any(message[0] == Command.REPLAY and message[3] for message, _ in group.messages)
    other, repeated = cuda_engine(choir).runner, Repeated(group.messages)
    clear(other.kv_cache)
    layers = other.lora._put.__self__.layers
    mover = make_mover(other.kv_cache, 0, other.device)
    with pytest.raises(EOFError):
        Follower(other.model, mover, other.graphs, repeated, other.device, layers).run()  # type: ignore[arg-type]
    for mine, theirs in zip(led.runner.kv_cache.tensors, other.kv_cache.tensors, strict=True):
        assert torch.equal(mine[:, 1:].cpu(), theirs[:, 1:].cpu())  # but for the null block's


def test_a_graph_groups_its_rows_once_and_those_without_adapters_launch_nothing_for_them(
    small_choir: Choir, machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = cuda_engine(small_choir).runner.graphs
    found = {}
    for adds_lora in graphs.lora.kinds:
        machine.reset_counts()
        graphs._forward(2, adds_lora)
        found[adds_lora] = machine.launches
    added = found[True] - found[False]
    products = 4  # of the layer
    assert added == {"sort": 1, "arange": 1, "searchsorted": 1, "_shrink_kernel": products, "_expand_kernel": products}


def test_without_adapters_an_engine_records_no_such_graphs(small_choir: Choir, machine: FakeCuda) -> None:
    graphs = cuda_engine(small_choir, enable_lora=False).runner.graphs
    assert {adds_lora for _, adds_lora in graphs.recorded} == {False}


def test_an_invariant_engine_on_a_gpu_takes_adapters(small_choir: Choir, machine: FakeCuda) -> None:
    config = config_for_llm(str(small_choir.folder), device="cuda", enable_lora=True, batch_invariant=True)
    hf_config = load_hf_config(config.model_config)
    chosen = choose_components(config, hf_config, torch.bfloat16, torch.device("cuda"), decoder_spec(hf_config))
    assert chosen.lora is TritonLoRAWeights


def test_where_the_kernel_is_wrong_torch_adds_adapters_outside_of_graphs(
    small_choir: Choir, machine: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FOLOVLLM_CHECK_KERNELS", "yes")
    monkeypatch.setattr(kernel_cases, "MANY", 8)  # the interpreter runs programs one by one
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)  # to caplog
    right = kernels._expand_kernel

    class Doubled:
        def __getitem__(self, grid: Any) -> Any:
            return lambda low, *args, **options: right[grid](low.mul_(2), *args, **options)

    monkeypatch.setattr(kernels, "_expand_kernel", Doubled())
    engine = cuda_engine(small_choir)
    assert "torch takes the place of a kernel, which is slower: the kernel 'lora' is off by" in caplog.text
    assert engine.runner.graphs is None
    assert serve(engine, MIXED, small_choir.requests) == [small_choir.greedy(*each) for each in MIXED]
