"""PoolingParams: what a request asks of a model whose answer is a vector. PoolerConfig: what such a model answers with.

    rows of a prompt ─▶ LAST: the last one, or MEAN: all of them ─▶ vector ─▶ embed:     cut to dimensions, length 1
                                                                          └─▶ classify:  head ─▶ softmax or sigmoid

vLLM: pooling_params.py, config/pooler.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from folovllm.utils.checks import check_bool, check_choice, check_int, wrong

PoolingTask = Literal["embed", "classify"]


@dataclass
class PoolingParams:
    """dimensions: the first so many numbers of an embedding; None: all. use_activation: give it length 1, or make
    probabilities of a classifier's logits; None: as the model's files say. task: of the two that the caller expects,
    which a model of the other refuses. skip_reading_prefix_cache: every row is computed anew; the engine says so where
    it needs all rows."""

    dimensions: int | None = None
    use_activation: bool | None = None
    task: PoolingTask | None = None
    skip_reading_prefix_cache: bool = False

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            check_int("dimensions", self.dimensions, 1)
        if self.use_activation is not None:
            check_bool("use_activation", self.use_activation)
        if self.task is not None:
            check_choice("task", self.task, ("embed", "classify"))


@dataclass(frozen=True)
class PoolerConfig:
    """As the model's folder has it (model_loader/pooler_config.py)."""

    task: PoolingTask
    pooling_type: Literal["LAST", "MEAN"] = "LAST"
    use_activation: bool = True
    size: int = 1
    """Numbers of an embedding, or labels."""
    dimensions: tuple[int, ...] = ()
    """Those that an embedding may be cut to; (): any."""
    labels: tuple[str, ...] = ()
    is_multi_label: bool = False
    """Whether each label has a probability of its own."""
    token_ids: tuple[int, ...] = ()
    """The tokens whose rows of the embedding make the head of one row: the first one's, less the second's. (): the
    checkpoint has a head."""

    @property
    def is_scorer(self) -> bool:
        """Whether it scores a pair of texts that are in one prompt."""
        return self.task == "classify" and self.size == 1


def resolve_pooling_params(params: object, pooler: PoolerConfig | None) -> PoolingParams | None:
    """A copy with everything filled in; None: tokens are drawn, as `params` say. pooler: the model's; None: it draws.

    Raises:
        ValueError: parameters of the other kind; a task, or dimensions, that the model does not have.
    """
    if not isinstance(params, PoolingParams):
        if pooler is None:
            return None
        raise ValueError(
            f"runner must be 'generate' to draw tokens, and this model pools (task {pooler.task!r}): use embed(), "
            "classify() or score(), of a server /v1/embeddings, /classify or /v1/score"
        )
    if pooler is None:
        raise ValueError("runner must be 'pooling' for embeddings, labels and scores, and this model draws tokens")
    params.__post_init__()  # fields may have been set since it was made
    if params.task not in (None, pooler.task):
        raise wrong("task", f"be {pooler.task!r} for this model", params.task)
    if (asked := params.dimensions) is not None:
        if pooler.task != "embed" or asked > pooler.size:
            most = f"be at most {pooler.size}" if pooler.task == "embed" else "be None for a classifier"
            raise wrong("dimensions", most, asked)
        if pooler.dimensions and asked not in pooler.dimensions:
            raise wrong("dimensions", f"be one of {', '.join(map(str, pooler.dimensions))}", asked)
    active = pooler.use_activation if params.use_activation is None else params.use_activation
    needs_all = params.skip_reading_prefix_cache or pooler.pooling_type == "MEAN"
    return replace(params, task=pooler.task, use_activation=active, skip_reading_prefix_cache=needs_all)
