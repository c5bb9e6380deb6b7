"""Which proposer speculative_config asks for."""

from __future__ import annotations

from folovllm.spec_decode.ngram import NgramProposer
from folovllm.speculative_config import SpeculativeConfig
from folovllm.worker.proposer import Proposer


def make_proposer(speculative: SpeculativeConfig, *more: object) -> Proposer:
    if speculative.method == "ngram":
        return NgramProposer(speculative.prompt_lookup_min, speculative.prompt_lookup_max)
    raise NotImplementedError(speculative.method)
