"""No test may reach for the network, and the loaders' progress bars would bury what pytest prints.

Set here, before anything imports transformers: both are read when it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The tests' tensors are tiny: a second thread wins nothing, and on a busy machine every step waits for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Without a GPU the Triton kernels run in Triton's interpreter: to be said before a module with kernels is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module", params=["no", "yes"], ids=["cpu without bf16 units", "cpu with bf16 units"])
def either_cpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test twice, as on both kinds of CPU: with bf16 units, dtype="auto" is bfloat16, and little is exact.

    For the examples and for what promises the same tokens. To run every test as on one kind:
    FOLOVLLM_CPU_BF16=yes make test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLOVLLM_CPU_BF16", request.param)
        yield
