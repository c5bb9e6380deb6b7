"""Which proposer speculative_config asks for, and the model or the head that some of them need.

A draft model comes in the shape of any other: its own config.json, its own quantisation, the large model's dtype. It
must know the large model's tokens by the same numbers, so both have a vocabulary of one size. A head has a folder of
its own, or is in the large model's, and takes that one's embedding and LM head.

vLLM: v1/spec_decode/, config/speculative.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from folovllm.attention.backend import AttentionBackend, select_backend
from folovllm.config import EngineConfig, ModelConfig
from folovllm.core.draft_length import StepCosts
from folovllm.engine.builder.components import Components, select_ops
from folovllm.engine.builder.kernel_check import check_kernels
from folovllm.errors import ModelLoadError
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.model_loader.quant_scheme import QuantScheme, select_scheme
from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec
from folovllm.models.eagle import EagleHead, load_eagle_head
from folovllm.models.registry import decoder_spec
from folovllm.models.weights import build_model, weights_folder
from folovllm.spec_decode.draft_graphs import DraftGraphs
from folovllm.spec_decode.draft_model import DraftModelProposer
from folovllm.spec_decode.eagle import EagleProposer
from folovllm.spec_decode.ngram import NgramProposer
from folovllm.spec_decode.ngram_table import NgramTable, NgramTableProposer
from folovllm.speculative_config import HEADS, SpeculativeConfig
from folovllm.utils.logging import init_logger
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.memory import CacheSize
from folovllm.worker.proposer import Proposer

logger = init_logger(__name__)

EMBEDDED_DRAFT = "embedded-draft"
DRAFT_FOLDER = EMBEDDED_FOLDER.with_name(EMBEDDED_DRAFT)
HEAD_FOLDER = EMBEDDED_FOLDER.with_name("embedded-head")

RIDGE_CPU, RIDGE_GPU = 30, 600  # rows, in bfloat16: two cores with AMX, and an H200
WAITING = 0.5  # Qwen3-0.6B on an H200: 0.7 ms beside a step of 1.3 ms


class Draft(NamedTuple):
    model: Any
    """A DecoderForCausalLM, or an EagleHead, which has as much of one as a cache asks for."""
    backend: type[AttentionBackend]


def load_draft(
    config: EngineConfig, model: DecoderForCausalLM, chosen: Components, dtype: torch.dtype, device: torch.device
) -> Draft | None:
    """The draft model or the head that `config` names, with its weights, without the kernels that are wrong on
    `device`; None: it names none. chosen: the components of `model`, the large one.

    Raises:
        ValueError: a draft's vocabulary has another size than the large model's.
        ModelLoadError: it cannot be read, or is none that is supported; the text says why.
    """
    speculative = config.speculative_config
    if speculative is not None and speculative.method in HEADS:
        return _load_head(config, speculative, model, chosen, dtype, device)
    if speculative is None or speculative.method != "draft_model":
        return None
    vocab_size, longest = model.decoder_spec.vocab_size, config.model_config.max_model_len
    name = speculative.model
    if name is None or name == EMBEDDED_DRAFT:
        name = str(DRAFT_FOLDER)
    try:
        own = ModelConfig(name)
        hf_config = load_hf_config(own)
        if (size := (spec := decoder_spec(hf_config)).vocab_size) != vocab_size:
            raise ValueError(
                f"speculative_config['model'] must have the large model's vocabulary of {vocab_size:,} tokens, got "
                f"{name!r} with {size:,}; name the folder of a draft that was made for it"
            )
        scheme = select_scheme(own, getattr(hf_config, "quantization_config", None))
        chosen = _checked(chosen, replace(config, model_config=own), spec, scheme, dtype, device)
        draft = build_model(hf_config, longest, dtype, device, weights_folder(name), ops=chosen.ops)
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config['model']: {error}") from None
    if hf_config.max_position_embeddings < longest:
        logger.warning(
            "the draft model %s has learnt %d tokens, max_model_len is %d: beyond, its proposals are worse",
            name, hf_config.max_position_embeddings, longest,
        )  # fmt: skip
    return Draft(draft, chosen.backend)


def _load_head(
    config: EngineConfig, speculative: SpeculativeConfig, model: DecoderForCausalLM, chosen: Components,
    dtype: torch.dtype, device: torch.device,
) -> Draft:  # fmt: skip
    method = speculative.method
    name = config.model_config.model if method == "mtp" else speculative.model or str(HEAD_FOLDER)
    try:
        hf_config = load_hf_config(ModelConfig(name))
        hf_config.num_hidden_layers, hf_config.layer_types, hf_config.sliding_window = 1, ["full_attention"], None
        spec, target = decoder_spec(hf_config), model.decoder_spec
        for field in ("vocab_size", "hidden_size"):
            if (got := getattr(spec, field)) != (size := getattr(target, field)):
                raise ModelLoadError(f"{field} of {name!r} must be the model's, {size}, got {got}")
        chosen = _checked(chosen, config, spec, None, dtype, device)
        head = load_eagle_head(weights_folder(name), spec, model.model, chosen.ops, dtype)
        return Draft(head, chosen.backend)
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config's {method!r}: {error}") from None


def _checked(
    chosen: Components, config: EngineConfig, spec: DecoderSpec, scheme: QuantScheme | None, dtype: torch.dtype,
    device: torch.device,
) -> Components:  # fmt: skip
    """What computes a guess."""
    ops = select_ops(dtype, device, one_by_one=config.model_config.enforce_eager, invariant=False, scheme=scheme)
    backend = select_backend(None, device, extras=spec.has_extras)
    chosen = replace(chosen, backend=backend, ops=ops, cache_dtype=dtype, draws=False)
    return check_kernels(chosen, config, spec, dtype, device)


def make_proposer(
    config: EngineConfig, model: DecoderForCausalLM, draft: Draft | None, size: CacheSize, dtype: torch.dtype,
    device: torch.device, record: Callable[[], DraftGraphs] | None = None,
) -> Proposer | None:  # fmt: skip
    """draft: of load_draft(); size: of the large model's KV cache; record: the draft's graphs, when its cache is bound.
    None: nothing is proposed.

    Raises:
        ValueError: speculative_config['model'] is no table of n-grams, or one of another vocabulary.
    """
    speculative = config.speculative_config
    if speculative is None:
        return None
    if draft is not None:
        num_blocks, guesser = size.num_blocks + 1, draft.model  # and the null block
        cache = KVCache(*draft, num_blocks=num_blocks, block_size=size.block_size, dtype=dtype, device=device)
        if device.type == "cuda":
            cache.warm_up(dtype)
            (guesser if isinstance(guesser, EagleHead) else guesser.model).ops.warm_up(guesser)
        if isinstance(guesser, EagleHead):
            return EagleProposer(guesser, model.lm_head, cache, size.num_host_blocks, device)
        recorded = None if record is None else record()
        return DraftModelProposer(guesser, cache, size.num_host_blocks, device, config.model_config.seed, recorded)
    if speculative.method == "ngram_table":
        return NgramTableProposer(NgramTable.load(speculative.model, model.decoder_spec.vocab_size))
    return NgramProposer(*speculative.lookup_sizes)


def step_costs(model: DecoderForCausalLM, draft: Draft | None, device: torch.device, *, run_ahead: bool) -> StepCosts:
    """As the device and the models' shapes say. draft: None: its tokens cost nothing.

    A draft's forward takes time for its bytes and for each layer's kernels: the mean of both shares is 0.16 for the
    embedded draft, where a CPU took 0.13 to 0.2 of a step, and 0.49 for Qwen3-0.6B beside Qwen3-8B, where an H200 took
    0.41.
    """
    share = 0.0
    if draft is not None:
        small, large = draft.model.attention_layers, model.attention_layers
        width = small[0].num_heads * small[0].head_size / (large[0].num_heads * large[0].head_size)
        share = len(small) / len(large) * (1 + width**2) / 2
    ridge = RIDGE_GPU if device.type == "cuda" else RIDGE_CPU
    return StepCosts(ridge, share, WAITING if run_ahead else 0.0)
