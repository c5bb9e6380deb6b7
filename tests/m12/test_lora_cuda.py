"""Adapters on the stand-in for a GPU: a step with some is launched kernel by kernel, others are replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from folovllm import LLM
from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.helpers import make_hf_model
from tests.m12.conftest import Choir, make_choir
from tests.m12.support import Asked, serve

pytest.importorskip("triton")


@pytest.fixture
def machine() -> Iterator[FakeCuda]:
    with fake_cuda_machine(total_bytes=2 << 30, prompt_graphs=False) as machine:
        yield machine


@pytest.fixture
def small_choir(tmp_path: Path) -> Choir:
    hf = make_hf_model("qwen3", num_hidden_layers=1)
    hf.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    return make_choir(tmp_path, hf)


def test_voices_on_a_gpu_are_the_merged_models_and_others_are_replayed(
    small_choir: Choir, machine: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    choir = small_choir
    options = {"device": "cuda", "dtype": "float32", "skip_tokenizer_init": True, "swap_space": 0.001}
    sizes = {"max_model_len": 40, "num_kv_blocks": 20, "block_size": 4, "max_num_seqs": 3}
    engine = LLM(str(choir.folder), enable_lora=True, max_loras=2, **options, **sizes).engine
    graphs, replays = engine.runner.graphs, 0
    assert graphs is not None
    replay = type(graphs).replay

    def counted(*arguments: object) -> object:
        nonlocal replays
        replays += 1
        return replay(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(graphs), "replay", counted)
    mixed: Asked = [("all", [3, 4, 5], 3), (None, [9, 8, 7, 6], 3), ("few", [2, 2], 3)]
    assert serve(engine, mixed, choir.requests) == [choir.greedy(*each) for each in mixed]
    assert replays <= 2  # of steps in which the one without an adapter is alone
    before, alone = replays, [(None, [1, 2, 3], 3)]
    assert serve(engine, alone, choir.requests) == [choir.greedy(*each) for each in alone]
    assert replays > before
