"""Layers with experts in one call: what the modules compute, whatever the sizes, ties among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm.layers.compiled_ops import CompiledOps
from folovllm.models.one_call import OneCallOps
from tests.helpers import make_hf_folder, make_hf_model, some
from tests.m4.cpu_target import target  # noqa: F401
from tests.m4.test_one_call import REASON, Steps, build

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
]  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"mlp_only_layers": [0]},
    "qwen2_moe": {"shared_expert_intermediate_size": 72, "hidden_size": 72},  # numbers beyond a whole register
    "mixtral": {"num_experts_per_tok": 4},  # all of them
}


def run_both(folder: Path, dtype: torch.dtype = torch.float32, steps: int = 8) -> Any:
    """(hidden states of the layers one by one, and in one call), step by step."""
    one_by_one, in_one = (Steps(build(folder, dtype, kind), dtype) for kind in (CompiledOps, OneCallOps))
    for _ in range(steps):
        yield one_by_one.step()[0], in_one.step()[0]
    assert in_one.model.model.ops.prepared is not None


@pytest.mark.parametrize("kind", SHAPES)
def test_experts_in_one_call_are_those_of_the_modules(kind: str, tmp_path: Path) -> None:
    for want, got in run_both(make_hf_folder(tmp_path, kind, num_hidden_layers=3, **SHAPES[kind])):
        assert (got - want).abs().max() < 2e-5 * want.abs().max()


@pytest.mark.parametrize("has_units", some(["no", "yes"]))
@pytest.mark.usefixtures("target")
def test_experts_in_bfloat16_are_those_of_the_modules(
    has_units: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a row whose choice was that near: most rows are the same within the rounding of bfloat16."""
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", has_units)
    folder = make_hf_folder(tmp_path, "qwen2_moe", dtype=torch.bfloat16, num_hidden_layers=3)
    near = [
        ((got - want).abs().amax(1) < 0.05 * want.abs().amax(1)).float().mean().item()
        for want, got in run_both(folder, torch.bfloat16)
    ]
    assert sum(near) / len(near) > 0.9


def test_of_equal_experts_the_lower_number_is_taken_in_one_call_too(tmp_path: Path) -> None:
    """Five of eight have one number from the router and weights of their own; three are chosen."""
    hf: Any = make_hf_model("qwen3_moe", num_hidden_layers=3)
    with torch.no_grad():
        for layer in hf.model.layers:
            layer.mlp.gate.weight[2:7] = layer.mlp.gate.weight[2]
    hf.save_pretrained(tmp_path)
    for want, got in run_both(tmp_path):
        assert (got - want).abs().max() < 2e-5 * want.abs().max()
