"""What quantising did, and what it cost.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass

from folovllm.layers.moe import block_of


@dataclass(frozen=True)
class LayerError:
    """What rounding a weight does to the product's outputs: the root of the mean square of their change, beside that of
    the outputs themselves."""

    name: str
    error: float
    tokens: int
    """Of the calibration text that its inputs were seen of."""
    method: str
    """rtn in a report of gptq: an expert's, which saw too few tokens."""


@dataclass(frozen=True)
class Report:
    """Bytes; loss in nats a token; seconds."""

    model: str
    out: str
    method: str
    bits: int
    group_size: int
    symmetric: bool
    activation_bits: int | None
    head_bits: int | None
    smoothquant: float | None
    calibration_tokens: int
    held_out_tokens: int
    linear_bytes_before: int
    """Of the linear layers, with their scales; the embedding, the head and the norms do not count."""
    linear_bytes_after: int
    bytes_before: int
    bytes_after: int
    loss_before: float | None
    """None: there was no text."""
    loss_after: float | None
    seconds: float
    errors: list[LayerError]
    """Of every linear layer, the largest first."""

    @property
    def rare_experts(self) -> str | None:
        """How many weights of experts were rounded to the nearest code for want of tokens, if any."""
        of_experts = [each for each in self.errors if block_of(each.name) == "experts"]
        rare = [each.tokens for each in of_experts if each.method != self.method]
        return (
            f"{len(rare):,} of {len(of_experts):,} weights of experts are rounded to the nearest code and not by "
            f"{self.method}: they saw {min(rare):,} to {max(rare):,} tokens of the calibration text, which is too few"
            if rare else None
        )  # fmt: skip

    @property
    def loss_rise(self) -> float | None:
        return None if self.loss_after is None or self.loss_before is None else self.loss_after - self.loss_before
