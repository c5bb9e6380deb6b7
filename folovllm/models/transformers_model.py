"""Any decoder of transformers, computed by its own modelling code with our paged attention inside.

    input_ids [num_tokens] ─▶ [1, num_tokens] ─▶ transformers' modules ─▶ hidden [num_tokens, hidden]
                                                     │        ▲
                              AttentionInterface["folovllm"]: Attention ─▶ our KV cache

transformers takes a batch of one row, in which all sequences follow one another, and asks for attention by a name.
Under that name is a function of ours. What tells the sequences apart, AttentionMetadata, reaches it as an argument.

Its products are ours, too, where no code reads their weights: on a CPU these lie in panels (layers/compiled_ops.py).

What a model needs of attention is not read off its configuration: each kind of model has other names there. One token
is sent through, on the meta device before any weight is read, and each layer's call says it: heads, sizes, scale,
window, soft-cap, sinks. What would be computed wrongly is refused by name: layers that ask for no attention, masks that
a model makes itself, a window that a layer does not tell its attention, logits that are made in an unknown way.

vLLM: model_executor/models/transformers/base.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from folovllm.attention.backend import Attention, AttentionExtras
from folovllm.attention.metadata import AttentionMetadata
from folovllm.config import ModelConfig
from folovllm.errors import ModelLoadError
from folovllm.layers.linear import PLAIN, Linear, LinearMethod
from folovllm.model_loader import ModelLoader
from folovllm.model_loader.hf_config_checks import check_any_config
from folovllm.models.checkpoint import check_weights_fit
from folovllm.utils.checks import check_int, wrong

NAME = "folovllm"
Asked = dict[str, Any]
"""What a layer says beside q, k and v, by transformers' names."""
Call = tuple[nn.Module, Attention]
"""A module of transformers, and what it asks for, with a cache of its own: DiffLlama's ask twice in one forward."""
Attend = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, Asked], torch.Tensor]
# Tensors among it that change nothing of attention, or are taken care of.
KNOWN_TENSORS = ("position_ids", "cache_position", "s_aux")
# RoPE whose angles depend on how long the longest sequence of a batch is, beyond the length that was trained.
ROPE_BY_LENGTH = ("dynamic", "longrope")


class _KeptArgumentsError(Exception):
    """The layer of a module, its one argument, did not hand on the arguments that it does not know."""


def paged_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None = None, *, attend: Attend | None = None, **asked: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' attention interface: [1, heads, num_tokens, size] in, [1, num_tokens, heads, size] out."""
    if attend is None:
        raise _KeptArgumentsError(module)
    return attend(module, query, key, value, {**asked, "attention_mask": attention_mask})[None], None


class Product(nn.Module):
    """A linear layer of transformers, [..., in] -> [..., out], as our layers compute it. It has no weight to read:
    where a model's code wants one, AttributeError says so on the meta device."""

    def __init__(self, old: nn.Linear | Conv1D, method: LinearMethod) -> None:
        super().__init__()
        weight = (old.weight.t().contiguous() if isinstance(old, Conv1D) else old.weight).detach()  # [out, in]
        with torch.device("meta"):  # for its numbers; it takes the tensors that are there
            self.linear = Linear(weight.shape[1], weight.shape[0], bias=old.bias is not None, method=method)
        self.linear.weight = nn.Parameter(weight, requires_grad=False)
        self.linear.bias = old.bias
        method.process_weights_after_loading(self.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.reshape(-1, x.shape[-1]))
        return out.view(*x.shape[:-1], out.shape[-1])


@dataclass(frozen=True)
class TransformersSpec:
    """What the engine must know of such a model before it has weights; as DecoderSpec has it."""

    vocab_size: int
    num_parameters: int
    layers: tuple[Attention, ...]
    reads_weights: bool = False
    """Whether the code of some layer reads the weight of a product: then all are left as they are."""

    @property
    def has_extras(self) -> bool:
        return any(layer.extras for layer in self.layers)

    @property
    def windows(self) -> list[int | None]:
        return [layer.extras.sliding_window for layer in self.layers]

    @property
    def kv_heads(self) -> list[tuple[int, int]]:
        return [(layer.num_kv_heads, layer.head_size) for layer in self.layers]


def transformers_spec(hf_config: Any, max_model_len: int) -> TransformersSpec:
    """Of a model that has shapes and no weights.

    Raises:
        ModelLoadError: transformers has no such decoder, or it cannot be computed here; the text says why.
    """
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(NAME, paged_attention)
    with _refusals(hf_config, "one token does not pass through it"), torch.device("meta"):
        check_any_config(hf_config.get_text_config())
        # Some products have shapes on the meta device in bfloat16 alone.
        hf = AutoModelForCausalLM.from_config(copy.deepcopy(hf_config), dtype=torch.bfloat16, attn_implementation=NAME)
        for module in hf.modules():
            if getattr(module, "rope_type", None) in ROPE_BY_LENGTH:
                module.rope_type = "default"  # else it reads the positions, which have no values here
        model = TransformersForCausalLM(hf.eval(), max_model_len)
        try:
            model.take_products(PLAIN)
            model.send_one_token()
        except AttributeError:
            return replace(model.decoder_spec, reads_weights=True)
        return model.decoder_spec


def load_transformers_model(
    model_config: ModelConfig, spec: TransformersSpec, max_model_len: int, dtype: torch.dtype, device: torch.device,
    linear: LinearMethod,
) -> TransformersForCausalLM:  # fmt: skip
    """With its weights, or random ones. linear: how its products are computed.

    Raises:
        ModelLoadError: the device cannot hold them, or the checkpoint is not this model's; the text says why.
    """
    check_weights_fit(spec.num_parameters * dtype.itemsize, device)
    if device.type == "cuda" and len(set(spec.kv_heads)) > 1:
        raise ModelLoadError("heads of K and V must be as many and as large in every layer on CUDA; give device='cpu'")
    hf = ModelLoader(model_config, attn_implementation=NAME).load(device)
    with _refusals(hf.config, "one token does not pass through it"):
        model = TransformersForCausalLM(hf, max_model_len)
    if type(linear) is not LinearMethod and not spec.reads_weights:
        model.take_products(linear)
    return model


class TransformersForCausalLM(nn.Module):
    """A model of transformers, in evaluation mode, with the methods that the engine calls of DecoderForCausalLM."""

    def __init__(self, hf: Any, max_model_len: int) -> None:
        super().__init__()
        self.hf, self.max_model_len = hf, max_model_len
        self.config = hf.config.get_text_config()
        self.head = hf.get_output_embeddings()
        _check_ropes(self.config, max_model_len)
        self.send_one_token()
        _check_layers(self.config, self._calls, max_model_len)
        parameters = sum(parameter.numel() for parameter in hf.parameters())
        self.decoder_spec = TransformersSpec(self.head.weight.shape[0], parameters, tuple(self.attention_layers))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """As DecoderForCausalLM.forward()."""
        attend = partial(self._compute, metadata, iter(self._calls))
        return self._run(self.hf.base_model, input_ids, positions, attend)[0][0]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As DecoderForCausalLM.compute_logits(); what comes behind the head has three names in transformers."""
        logits = self.head(hidden)
        if (scale := getattr(self.config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (divisor := getattr(self.config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (cap := getattr(self.config, "final_logit_softcapping", None)) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits  # type: ignore[no-any-return]

    @property
    def attention_layers(self) -> list[Attention]:
        return [layer for _, layer in self._calls]

    def take_products(self, method: LinearMethod) -> None:
        """Each linear layer becomes one whose product `method` makes; its old weight is freed."""
        for parent in list(self.hf.modules()):
            for name, child in parent.named_children():
                if type(child) in (nn.Linear, Conv1D):
                    product = Product(child, method)
                    if child is self.head:
                        self.head = product
                    setattr(parent, name, product)

    def _run(self, model: nn.Module, input_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> Any:
        self._attend = attend  # of the forward that runs
        return model(input_ids=input_ids[None], position_ids=positions[None], use_cache=False, attend=attend)

    def _compute(
        self, metadata: AttentionMetadata, calls: Iterator[Call], module: nn.Module, query: torch.Tensor,
        key: torch.Tensor, value: torch.Tensor, asked: Asked,
    ) -> torch.Tensor:  # fmt: skip
        """[num_tokens, heads, value_size]. Heads of K and V have one size in the cache: zeros fill up the smaller."""
        known, layer = next(calls)
        if known is not module:
            raise RuntimeError(f"{type(module).__name__} asks for attention where another module did at the start")
        heads = [F.pad(x[0].transpose(0, 1), (0, layer.head_size - x.shape[-1])) for x in (query, key, value)]
        return layer(*(x.contiguous() for x in heads), metadata)[..., : value.shape[-1]]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def send_one_token(self) -> None:
        """Fills `_calls`. With weights in place, compares our logits with those of transformers' own head."""
        token = torch.zeros(1, dtype=torch.int64, device=self.hf.get_input_embeddings().weight.device)
        self._calls: list[Call] = []
        send = partial(self._run, self.hf.base_model, token, token, partial(self._record, self._calls))
        try:
            hidden = send()[0][0]
        except _KeptArgumentsError as kept:  # StableLM: its layers get the argument by a hook
            for module in self.hf.modules():
                if type(module) is type(kept.args[0]):
                    module.register_forward_pre_hook(self._hand_on, with_kwargs=True)
            self._calls.clear()
            hidden = send()[0][0]
        if token.device.type != "meta":
            wanted = self._run(self.hf, token, token, partial(self._record, [])).logits[0].float()
            got = self.compute_logits(hidden).float()
            most = 4 * torch.finfo(hidden.dtype).eps * float(wanted.abs().max())  # the same products in the same order
            if not torch.allclose(got, wanted, rtol=0, atol=most, equal_nan=True):
                raise _refusal(self.config, "its logits are more than its head makes of its last hidden state")

    def _hand_on(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "attend": self._attend}

    def _record(
        self, calls: list[Call], module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        asked: Asked,
    ) -> torch.Tensor:  # fmt: skip
        """Notes in `calls` what a layer asks for. What comes out is right but for sinks: a token that sees itself."""
        tensors = {name for name, each in asked.items() if isinstance(each, torch.Tensor)}
        if unknown := sorted(tensors.difference(KNOWN_TENSORS)):
            raise _refusal(self.config, f"{type(module).__name__} gives its attention {', '.join(unknown)}")
        if not getattr(module, "is_causal", True) or asked.get("is_causal") is False:
            raise _refusal(self.config, f"{type(module).__name__} sees tokens that come later")
        num_heads, num_kv_heads, scale = query.shape[1], key.shape[1], asked.get("scaling")
        if (window := asked.get("sliding_window")) is not None:
            check_int("sliding_window", window, 1)
        extras = AttentionExtras(
            sliding_window=window if window is not None and window < self.max_model_len else None,
            logits_soft_cap=asked.get("softcap"), sinks=asked.get("s_aux"),
        )  # fmt: skip
        scale, size = key.shape[3] ** -0.5 if scale is None else float(scale), max(key.shape[3], value.shape[3])
        calls.append((module, Attention(num_heads, num_kv_heads, size, scale, extras)))
        return value[0].transpose(0, 1).repeat_interleave(num_heads // num_kv_heads, dim=1)


def _check_layers(config: Any, calls: list[Call], max_model_len: int) -> None:
    """What was asked for beside what the configuration says: each layer by a module of its own, and no window or chunk
    that only a mask would have known."""
    modules = list(dict.fromkeys(module for module, _ in calls))
    if len(modules) != config.num_hidden_layers:
        why = f"{len(modules)} of its {config.num_hidden_layers} layers ask for attention"
        raise _refusal(config, f"{why}: the others have some of their own, or none, or share a module")
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if not window or window >= max_model_len or getattr(config, "use_sliding_window", None) is False:
        return
    for module, layer in calls:
        number = modules.index(module)
        if (kinds is None or kinds[number] == "sliding_attention") and layer.extras.sliding_window is None:
            raise _refusal(config, f"its layer {number} has a window of {window} and does not tell its attention")


def _check_ropes(config: Any, max_model_len: int) -> None:
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *(each for each in ropes.values() if isinstance(each, dict))):
        trained = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
        if rope.get("rope_type") in ROPE_BY_LENGTH and trained is not None and max_model_len > trained:
            why = f"be at most {trained} with model_impl='transformers' and rope_type {rope['rope_type']!r}"
            raise wrong("max_model_len", why, max_model_len, "beyond, angles depend on the longest sequence of a batch")


def _refusal(config: Any, why: str) -> ModelLoadError:
    return ModelLoadError(f"model_impl 'transformers' cannot compute model_type {config.model_type!r}: {why}")


@contextmanager
def _refusals(config: Any, why: str) -> Iterator[None]:
    """Whatever a model's code raises becomes a refusal: it was not made for an attention that is not its own."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ModelLoadError) or str(error).startswith("max_model_len"):
            raise
        raise _refusal(config, " ".join(str(error).split())[:200]) from error
    except Exception as error:
        raise _refusal(config, f"{why} ({type(error).__name__}: {' '.join(str(error).split())[:100]})") from error
