"""Which proposer speculative_config asks for."""

from __future__ import annotations

from folovllm.spec_decode.ngram import NgramProposer
from folovllm.spec_decode.proposer import Proposer
from folovllm.speculative_config import SpeculativeConfig


def make_proposer(speculative: SpeculativeConfig, *more: object) -> Proposer:
    if speculative.method == "ngram":
        return NgramProposer(speculative.prompt_lookup_min, speculative.prompt_lookup_max)
    raise NotImplementedError(speculative.method)
