"""Whether a model pools, and how, read off its folder.

    modules.json, 1_Pooling/config.json       sentence-transformers': which rows, and whether a Normalize comes behind
    …Model in config.json's architectures     no head: an embedding
    …ForSequenceClassification                 a head of its own, score.weight
    classifier_from_token, LogitScore          a language model asked for yes or no: E_yes - E_no is a head of one row
    none of these, and runner="pooling"        the last token's row, of length 1

P(yes) of the two is sigmoid(h . (E_yes - E_no)): a softmax over two logits needs only their difference.

vLLM: transformers_utils/config.py (get_pooling_config), model_executor/models/adapters.py, config/model.py
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from folovllm.errors import ModelLoadError
from folovllm.model_loader.hf_config import asked_tokens, read_modules, read_settings
from folovllm.model_loader.model_files import resolve_model_path
from folovllm.pooling_params import PoolerConfig
from folovllm.utils.checks import wrong

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_MODES = {"lasttoken": "LAST", "mean": "MEAN"}
_MODULES = ("Transformer", "Pooling", "Normalize", "LogitScore")


def load_pooler_config(hf_config: PreTrainedConfig, model: str, tokenizer: Any | None) -> PoolerConfig | None:
    """None: the model draws tokens. hf_config: as load_hf_config() returns it.

    Raises:
        ModelLoadError: a module, a way to pool or an activation that is not computed here, by name.
    """
    if (task := hf_config.pooling_task) is None:
        return None
    path = resolve_model_path(model, weights=False)
    modules = read_modules(path) or {}
    if unknown := [name for name in modules if name not in _MODULES]:
        raise ModelLoadError(f"modules.json must name {', '.join(_MODULES)} alone, got {unknown[0]}")
    if modules.get("Transformer"):
        raise ModelLoadError(f"modules.json must have the Transformer in its own folder, got {modules['Transformer']}")
    if task == "embed":
        size = hf_config.get_text_config().hidden_size
        sizes = tuple(getattr(hf_config, "matryoshka_dimensions", None) or ())
        if "Pooling" not in modules:
            return PoolerConfig(task, use_activation=not modules or "Normalize" in modules, size=size, dimensions=sizes)
        kind = _mode(read_settings(path, f"{modules['Pooling']}/config.json") or {})
        return PoolerConfig(task, cast(Any, kind), "Normalize" in modules, size, sizes)
    token_ids = _token_ids(hf_config, path, tokenizer, modules)
    names: Any = {} if token_ids else hf_config.id2label
    size, problem = len(names) or 1, getattr(hf_config, "problem_type", None)
    labels = tuple(str(names[place]) for place in range(len(names)))
    named = (getattr(hf_config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or (read_settings(path, "config_sentence_transformers.json") or {}).get("activation_fn") or "Sigmoid"
    if (function := named.rpartition(".")[2]) not in ("Identity", "Sigmoid", "Softmax"):
        raise ModelLoadError(f"activation_fn must be Identity, Sigmoid or Softmax of torch, got {named!r}")
    return PoolerConfig(
        task, size=size, use_activation=problem != "regression" and function != "Identity", labels=labels,
        is_multi_label=problem == "multi_label_classification", token_ids=token_ids,
    )  # fmt: skip


def _mode(config: dict[str, Any]) -> str:
    """LAST or MEAN, from either spelling: pooling_mode, or pooling_mode_mean_tokens and the like, one of them true."""
    old = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    named = config.get("pooling_mode") or [re.sub("^pooling_mode_|_tokens?$", "", name) for name in old] or "mean"
    mode = named[0] if isinstance(named, list) and len(named) == 1 else named
    if not isinstance(mode, str) or mode not in _MODES:
        raise ModelLoadError(str(wrong("pooling_mode of 1_Pooling", f"be {' or '.join(_MODES)}", mode)))
    if config.get("include_prompt") is False:
        raise ModelLoadError("include_prompt of 1_Pooling must be true, got False: all tokens are pooled here")
    return _MODES[mode]


def _token_ids(hf_config: Any, path: str, tokenizer: Any | None, modules: dict[str, str]) -> tuple[int, ...]:
    if "LogitScore" in modules:
        config = read_settings(path, f"{modules['LogitScore']}/config.json") or {}
        ids: list[Any] = [config.get("true_token_id"), config.get("false_token_id")]
    elif not (words := asked_tokens(hf_config)):
        return ()
    else:
        ids = [None if tokenizer is None else tokenizer.get_vocab().get(word) for word in reversed(words)]
    size = hf_config.get_text_config().vocab_size
    if modules and ids[1:] == [None]:
        ids.pop()  # the logit of yes alone
    if not all(isinstance(each, int) and 0 <= each < size for each in ids):
        raise ModelLoadError(f"classifier_from_token must be two tokens of the vocabulary, [no, yes], got {ids}")
    return tuple(ids)
