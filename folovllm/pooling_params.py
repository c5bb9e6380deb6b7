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
    probabilities of logits; None: as the model's files say. task: what the caller expects, which a model of the other
    task refuses. skip_reading_prefix_cache: every row is computed anew, as for a mean the engine says."""

    dimensions: int | None = None
    use_activation: bool | None = None
    task: PoolingTask | None = None
    skip_reading_prefix_cache: bool = False


@dataclass(frozen=True)
class PoolerConfig:
    """As the model's folder has it (model_loader/pooler_config.py). size: numbers of an embedding, or labels.
    dimensions: those that an embedding may be cut to; (): any. token_ids: the head is the first one's row of the
    embedding, less the second's; (): the checkpoint has it."""

    task: PoolingTask
    pooling_type: Literal["LAST", "MEAN"] = "LAST"
    use_activation: bool = True
    size: int = 1
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    is_multi_label: bool = False
    token_ids: tuple[int, ...] = ()


def resolve_pooling_params(params: object, pooler: PoolerConfig | None) -> PoolingParams | None:
    """A copy, checked and filled in; None: tokens are drawn, as `params` say. pooler: the model's; None: it draws.

    Raises:
        ValueError: parameters of the other kind; a task, or dimensions, that the model does not have.
    """
    if isinstance(params, PoolingParams) and pooler is None:
        raise ValueError("runner must be 'pooling' for embeddings, labels and scores, and this model draws tokens")
    if pooler is None:
        return None
    if not isinstance(params, PoolingParams):
        raise ValueError(
            f"runner must be 'generate' to draw tokens, and this model pools (task {pooler.task!r}): use embed(), "
            "classify() or score(), of a server /v1/embeddings, /classify or /v1/score"
        )
    if params.task is not None:
        check_choice("task", params.task, (pooler.task,))
    active = pooler.use_activation if params.use_activation is None else params.use_activation
    check_bool("use_activation", active)
    if (asked := params.dimensions) is not None:
        check_int("dimensions", asked, 1)
        if pooler.task != "embed" or asked > pooler.size or asked not in (pooler.dimensions or (asked,)):
            allowed = f"one of {pooler.dimensions}" if pooler.dimensions else f"at most {pooler.size}"
            raise wrong("dimensions", f"be {allowed if pooler.task == 'embed' else 'None for a classifier'}", asked)
    needs_all = params.skip_reading_prefix_cache or pooler.pooling_type == "MEAN"
    return replace(params, task=pooler.task, use_activation=active, skip_reading_prefix_cache=needs_all)
