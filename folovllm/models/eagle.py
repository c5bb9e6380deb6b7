"""A head that reads the target: one layer that names the next token from the target's hidden state and the last token.

    hidden state i - 1 ─ norm ─┐
    token i ─ embed ─ norm ────┴─ fc ─ one decoder layer ─ norm ─▶ hidden state i, about ─ LM head ─▶ token i + 1

A small model has to understand the text. A head need not: what the target has made of it is in the hidden state, and
the embedding says which token was drawn. Its embedding and its LM head are the target's own.

Slot i of its cache has token i beside hidden state i - 1, where EAGLE and vLLM put token i + 1 beside hidden state i
into slot i. RoPE sees differences of positions only, so that both are the same function. Here a slot's keys depend on
the tokens up to i, as the target's do, and so a block's hash holds for both.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", ICML 2024, arXiv:2401.15077; the norms
before fc are DeepSeek-V3's (multi-token prediction, arXiv:2412.19437), and the names of the weights MiMo's.

vLLM: model_executor/models/mimo_mtp.py, llama_eagle.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open

from folovllm.attention.backend import Attention
from folovllm.attention.metadata import AttentionMetadata
from folovllm.errors import ModelLoadError
from folovllm.layers.linear import Embedding, Linear
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.ops import LayerOps
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.model_loader.model_files import readable_errors
from folovllm.models.decoder import Decoder, DecoderSpec
from folovllm.models.weights import default_dtype

PREFIX = "model.mtp_layers.0."
DTYPES = ("BF16", "F16", "F32")
OTHERS = (
    (r"^midlayer\.|^[dt]2[td]$", "EAGLE-3's", "hidden states of three layers, and a vocabulary of its own"),
    (r"^layers\.0\.|^fc\.", "EAGLE-1's", "a layer without its first norm, and no norms before fc and at the end"),
    (r"\.(enorm|hnorm|eh_proj)\.", "DeepSeek's", "its latent attention and its experts"),
    (r"^mtp\.", "Qwen3-Next's", "attention with a gate, and norms that add 1 to their weight"),
)
"""What other heads' tensors are called, whose they are, and what they need that this one has not."""


class EagleHead(Decoder):
    """A decoder of one layer, as `spec` says, with fc before it. embedding, rotary: the target's own."""

    def __init__(self, spec: DecoderSpec, embedding: Embedding, rotary: RotaryEmbedding, ops: LayerOps) -> None:
        super().__init__(spec, 1, ops)
        self.decoder_spec, self.embed_tokens, self.rotary = spec, embedding, rotary
        self.hidden_norm, self.token_norm = (RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops.rms_norm) for _ in "ht")
        of_fc = ops.linear.for_layer("", ["input_proj"])
        self.fc = Linear(2 * spec.hidden_size, spec.hidden_size, method=of_fc)

    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, before: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """input_ids, positions [num_tokens] int64; before [num_tokens, hidden]: the hidden state before each token,
        after the final norm -> about the hidden states of these tokens."""
        embedded = self.embed_tokens(input_ids).to(before.dtype)
        x = self.fc(torch.cat([self.hidden_norm(before)[0], self.token_norm(embedded)[0]], dim=-1))
        return self.ops.run_layers(self.layers, self.norm, x, self.rotary(positions), metadata)

    @property
    def attention_layers(self) -> list[Attention]:
        return [module for module in self.modules() if isinstance(module, Attention)]

    def checkpoint_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(MiMo's name, the view of our parameter that it fills), for every tensor."""
        own = {"token_layernorm": self.token_norm, "hidden_layernorm": self.hidden_norm, "input_proj": self.fc}
        for name, module in (*own.items(), ("final_layernorm", self.norm), *self.layers[0].named_modules()):
            if isinstance(module, RMSNorm):
                yield f"{PREFIX}{name}.weight", module.weight.data
            elif isinstance(module, Linear | QKNorm):
                plain = isinstance(module, Linear) and "" in module.parts  # the parts of others have names beside them
                place = name if plain else name.rpartition(".")[0]
                for part, view in module.checkpoint_slots():
                    yield f"{PREFIX}{place}.{part}", view


def load_eagle_head(folder: Path, spec: DecoderSpec, target: Decoder, ops: LayerOps, dtype: torch.dtype) -> EagleHead:
    """The head in `folder`, in whose files there may be more. spec: of its layer.

    Raises:
        ModelLoadError: there is none, or one of another kind; a tensor is missing or misshapen, by name.
    """
    with readable_errors(str(folder)), ExitStack() as files:
        opened = [files.enter_context(safe_open(path, framework="pt")) for path in sorted(folder.glob("*.safetensors"))]
        found = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  not a dict
        mine = {name: file.get_slice(name) for name, file in found.items() if name.startswith(PREFIX)}
        for pattern, whose, what in OTHERS if not mine else ():
            if name := next((name for name in found if re.search(pattern, name)), None):
                raise ModelLoadError(f"the head must have MiMo's layout, got {whose} ({name}), which needs {what}")
        if not mine:
            raise ModelLoadError(f"{folder} must have a head, whose tensors are named {PREFIX}…, got none")
        with torch.device(target.embed_tokens.weight.device), default_dtype(dtype):
            head = EagleHead(spec, target.embed_tokens, target.rotary, ops).eval()
        slots = dict(head.checkpoint_slots())
        for name, stored in mine.items():
            has = f"{stored.get_dtype()} {tuple(stored.get_shape())}"
            if name not in slots or has not in [f"{kind} {tuple(slots[name].shape)}" for kind in DTYPES]:
                wanted = f"{' or '.join(DTYPES)} {tuple(slots[name].shape)}" if name in slots else "no such tensor"
                raise ModelLoadError(f"tensor {name} is {has}, the configuration asks for {wanted}")
        if missing := sorted(slots.keys() - mine.keys()):
            raise ModelLoadError(f"the head lacks {len(missing)} tensor(s): {', '.join(missing[:5])}")
        for name, slot in slots.items():
            slot.copy_(found[name].get_tensor(name))
    ops.process_weights_after_loading(head)
    return head
