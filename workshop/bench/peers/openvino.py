"""OpenVINO GenAI as a peer, on a CPU: its continuous batching pipeline reads our weights as GGUF. vLLM: none"""

from __future__ import annotations

from pathlib import Path

from folovllm.bench.contestant import Contestant
from folovllm.bench.peers.apart import Kind, start
from folovllm.bench.peers.setup import PeerSetup
from folovllm.utils.devices import default_device

ENGINE = Path(__file__).parent / "workers" / "openvino_engine.py"
OPENVINO = Kind("openvino", ENGINE, ("openvino_genai", "gguf", "numpy"), "openvino-genai gguf numpy")


def _make(setup: PeerSetup) -> list[Contestant]:
    """Raises ValueError where ours runs on a GPU."""
    if (device := setup.device or default_device()) != "cpu":
        raise ValueError(f"peer must be one that runs on {device}, got 'openvino', which is set up for CPUs here")
    return [start(OPENVINO, setup)]


PEERS = {"openvino": _make}
