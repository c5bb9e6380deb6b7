"""No test may reach for the network, and the loaders' progress bars would bury what pytest prints.

Set here, before anything imports transformers: both are read when it is imported.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The tests' tensors are tiny: a second thread wins nothing, and on a busy machine every step waits for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Without a GPU the Triton kernels run in Triton's interpreter: to be said before a module with kernels is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
