"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.triton import kernels_unavailable_reason
from tests.helpers import run_example

NAMES = ["m4_async_scheduling.py", "m4_online_softmax.py", "m4_paged_decode.py"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_softmax_over_four_numbers_comes_out_the_same_all_at_once_in_tiles_and_in_parts() -> None:
    lines = dict(line.rsplit(maxsplit=1) for line in run_example(NAMES[1]).splitlines() if line)
    assert lines["online"] == lines["torch"] == lines["merged"]


@pytest.mark.usefixtures("either_cpu")
def test_the_next_step_is_launched_first_and_no_token_changes() -> None:
    text = run_example(NAMES[0])
    off, on, *_ = text.split("\n\n")
    assert off.startswith("off: 0 of 24")
    assert off.splitlines()[1].startswith("  launch 1 │ collect 1 │ launch 2 │ collect 2")
    assert on.startswith("on : 23 of 24")
    assert on.splitlines()[1].startswith("  launch 1 │ launch 2 │ collect 1 │ launch 3 │ collect 2")
    assert "the same tokens: True" in text
    assert "on : 0 of 24" in text
    assert text.strip().endswith("with a penalty: True")


@pytest.mark.skipif(
    kernels_unavailable_reason(DEVICE) is not None, reason=f"Triton: {kernels_unavailable_reason(DEVICE)}"
)
def test_the_kernel_agrees_with_float64_however_it_is_split() -> None:
    lines = [line for line in run_example(NAMES[2]).splitlines() if "programs" in line]
    differences = [float(line.rsplit(maxsplit=1)[1]) for line in lines]
    assert len(differences) == 4
    assert max(differences) < 1e-5
