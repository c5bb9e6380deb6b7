"""nano-vLLM as a peer, on a GPU: it has no other kernels than CUDA's. vLLM: none"""

from __future__ import annotations

from pathlib import Path

from folovllm.bench.contestant import Contestant
from folovllm.bench.peers.apart import Apart, Kind, PeerMissingError, PeerSetup
from folovllm.model_files import resolve_model_path
from folovllm.utils.devices import default_device

ENGINE = Path(__file__).parent / "workers" / "nano_vllm_engine.py"
NANO_VLLM = Kind("nano-vllm", ENGINE, ("nanovllm",), "git+https://github.com/GeeeekExplorer/nano-vllm.git")


def _make(setup: PeerSetup) -> list[Contestant]:
    """nano-vLLM reads a checkpoint and its tokenizer from a folder; a shape has neither.

    Raises:
        PeerMissingError: not on a GPU, or not installed. ValueError: no folder with weights and a tokenizer.
    """
    if not (device := setup.device or default_device()).startswith("cuda"):
        raise PeerMissingError(f"nano-vLLM runs on CUDA only, and this benchmark on {device}")
    if setup.model.load_format != "auto":
        raise ValueError("model must be a folder with weights and a tokenizer for the peer 'nano-vllm', got a shape")
    NANO_VLLM.find_python()
    return [
        Apart(
            NANO_VLLM,
            setup,
            model=resolve_model_path(setup.model.path),
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.num_requests,
        )
    ]


PEERS = {"nano-vllm": _make}
