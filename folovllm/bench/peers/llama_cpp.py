"""llama.cpp as a peer, on a CPU: the same weights as GGUF, sequences batched as its server does. vLLM: none"""

from __future__ import annotations

from folovllm.bench.contestant import Contestant
from folovllm.bench.peers.apart import WORKERS, Kind, start
from folovllm.bench.peers.setup import PeerSetup
from folovllm.utils.devices import default_device

LLAMA_CPP = Kind(
    "llama-cpp", WORKERS / "llama_cpp_engine.py", ("llama_cpp", "gguf", "numpy"), "llama-cpp-python gguf numpy"
)


def _make(setup: PeerSetup) -> list[Contestant]:
    """Raises ValueError where ours runs on a GPU: the package from the index is llama.cpp for CPUs."""
    if (device := setup.device or default_device()) != "cpu":
        raise ValueError(f"peer must be one that runs on {device}, got 'llama-cpp', which is set up for CPUs here")
    return [start(LLAMA_CPP, setup)]


PEERS = {"llama-cpp": _make}
