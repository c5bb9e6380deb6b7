"""Which peers there are: every file of a folder of peers that has a PEERS, a dictionary from a name to what makes it.

They are looked for and not listed, so that a peer arrives as a file, and this one stays as it is.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from folovllm.bench import peers
from folovllm.bench.contestant import Contestant
from folovllm.bench.peers.setup import PeerMissingError, PeerSetup

# One contestant for each row of the table. An attribute `batch_size` is shown there.
PeerMaker = Callable[[PeerSetup], list[Contestant]]


def find_peers(folder: ModuleType) -> dict[str, PeerMaker]:
    found: dict[str, PeerMaker] = {}
    for module in iter_modules(folder.__path__, f"{folder.__name__}."):
        if module.name != __name__:
            found |= getattr(import_module(module.name), "PEERS", {})
    return found


PEERS = find_peers(peers)


def peer_names(given: Sequence[str]) -> list[str]:
    """["hf,vllm", "llama-cpp"], as a command line has them -> each by itself."""
    return [name for names in given for name in names.split(",")]


def require_peers(names: Sequence[str]) -> None:
    """Raises ValueError for a name that PEERS lacks, or one that is given twice."""
    for name in names:
        if name not in PEERS:
            raise ValueError(f"peer must be one of {', '.join(PEERS)}, got {name!r}")
        if list(names).count(name) > 1:
            raise ValueError(f"peer must name each peer once, got {name!r} twice")


def make_peers(
    names: Sequence[str], setup: PeerSetup, tick: Callable[[str], None]
) -> tuple[list[Contestant], list[str]]:
    """The contestants of those that are installed; for each of the others a line that says how to install it."""
    made: list[Contestant] = []
    missing: list[str] = []
    for name in names:
        tick(f"loading {name}")
        try:
            made += PEERS[name](setup)
        except PeerMissingError as error:
            missing.append(f"{name} is not here: {error}")
    return made, missing
