"""transformers' own continuous batching as a peer. vLLM: none"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from folovllm.bench.contestant import Contestant
from folovllm.bench.peers.apart import Kind, PeerSetup
from folovllm.bench.peers.registry import start_transformers
from folovllm.utils.devices import default_device

ENGINE = Path(__file__).parent / "workers" / "hf_continuous_engine.py"
HF_CONTINUOUS = Kind("hf-continuous", ENGINE, ("transformers",), "transformers")


def _make(setup: PeerSetup) -> list[Contestant]:
    """Raises ValueError where transformers could not ask how much memory is free, and would refuse every cache."""
    if (setup.device or default_device()) == "cpu" and find_spec("psutil") is None:
        raise ValueError(
            "peer must be one that runs here, got 'hf-continuous': on a CPU it needs psutil (pip install psutil)"
        )
    return [start_transformers(HF_CONTINUOUS, setup)]


PEERS = {"hf-continuous": _make}
