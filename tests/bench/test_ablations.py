"""An engine without one of the things that make it fast lacks just that, and says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import SamplingParams
from folovllm.bench.contestant import FoloVLLM
from folovllm.bench.workload import BenchModel
from folovllm.layers.ops import LayerOps
from folovllm.utils.cpu_kernels import unavailable_reason
from tests.bench.support import bench_report, run
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import PROMPTS, make_engine, serve
from workshop.bench.ablations import ABLATIONS, OPERATIONS, leave_out_draw, left_out

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
PRESET = ["preset", "nano-vllm", "--shape", "qwen3-tiny", "--dtype", "float32", "--num-prompts", "2",
          "--input-len", "8", "--output-len", "4", "--rounds", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("model"))


def make_ours(folder: Path, **options: object) -> FoloVLLM:
    return FoloVLLM(BenchModel("tiny", str(folder), "auto"), "float32", "cpu", 40, num_kv_blocks=40, **options)


def operations(ours: FoloVLLM) -> dict[str, bool]:
    """Whether each of them is torch's."""
    ops = ours.engine.runner.model.model.ops
    return {name: getattr(ops, name) is getattr(LayerOps(), name) for name in OPERATIONS.values()}


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name != "sampling"])
def test_what_is_left_out_is_missing_and_the_tokens_are_the_same(folder: Path, name: str) -> None:
    whole, less = make_ours(folder), make_ours(folder, **left_out([name], CPU))
    model_config = less.engine.config.model_config
    assert model_config.enforce_eager == (name == "graphs")
    assert (model_config.attention_backend == "paged_torch") == (name == "attention")
    if unavailable_reason() is None:
        assert not any(operations(whole).values())
        torchs = [each for each, plain in operations(less).items() if plain]
        assert torchs == [OPERATIONS[one] for one in OPERATIONS if one == name]
    params = SamplingParams(temperature=0, max_tokens=8)
    requests = [([7, 3, 9], params), (list(range(30, 50)), params)]
    assert serve(whole.engine, requests) == serve(less.engine, requests)


def test_engines_that_are_built_later_have_everything_again(folder: Path) -> None:
    before = operations(make_ours(folder))
    assert all(operations(make_ours(folder, **left_out(list(OPERATIONS), CPU))).values())
    assert operations(make_ours(folder)) == before


def test_the_preset_says_what_was_left_out(tmp_path: Path) -> None:
    data = bench_report([*PRESET, "--without", "graphs", "silu"], tmp_path / "less.json")
    assert data["details"]["without"] == ["graphs", "silu"]
    assert "Our engine without: graphs, silu." in data["notes"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([*PRESET, "--without", "wings"], "without must be of graphs, ahead, attention"),
        ([*PRESET, "--without", "sampling"], "no kernel of ours draws its tokens"),
        ([*PRESET, "--gpu-memory-utilization", "1.5"], "gpu_memory_utilization must be in (0, 1], got 1.5"),
    ],
)
def test_what_cannot_be_left_out_is_refused(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert text in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.exhaustive  # another process, which loads PyTorch and Transformers
def test_transformers_continuous_batching_takes_the_preset_beside_it(tmp_path: Path) -> None:
    data = bench_report([*PRESET, "--peer", "hf-continuous"], tmp_path / "beside.json")
    assert [row["engine"] for row in data["rows"]] == ["folovllm", "hf-continuous"]


def test_without_sampling_neither_an_engine_nor_its_graphs_draw_with_the_kernel(
    small_oracle: Oracle, fake_cuda: FakeCuda
) -> None:
    engine = make_engine(small_oracle, max_num_seqs=2)

    def recorded() -> set[str]:
        graphs = engine.runner.graphs
        assert graphs is not None
        return {kernel.place for graph in graphs.recorded.values() for kernel in graph.recording.kernels}

    assert any("sample/kernels/" in place for place in recorded())
    leave_out_draw(engine)
    assert not any("sample/" in place for place in recorded())
    before = fake_cuda.variants["_sample_kernel"].total()
    requests = [(prompt, SamplingParams(temperature=0, max_tokens=4)) for prompt in PROMPTS]
    said = [one["outputs"][0]["token_ids"] for one in serve(engine, requests)]
    assert said == [small_oracle.greedy(prompt, 4) for prompt in PROMPTS]
    assert fake_cuda.variants["_sample_kernel"].total() == before
