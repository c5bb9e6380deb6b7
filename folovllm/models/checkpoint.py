"""Does a checkpoint fit the model, and the model the memory? Answered before a byte of it is taken.

The model is built on the meta device, where tensors have shapes and no storage. The heads of the weight files say what
is in them. So a configuration that asks for more than the files have is refused by a tensor's name, however much
memory it asks for.

vLLM: none; it finds out while it loads
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from folovllm.errors import ModelLoadError
from folovllm.model_loader.gguf import GGUFWeights, gguf_tensors
from folovllm.model_loader.model_files import checkpoint_files, is_gguf
from folovllm.model_loader.quant_scheme import WAY_OUT
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.utils.devices import total_memory_bytes
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CLASSIFIER = "score.weight"
# As safetensors spells them. Whole numbers where the model has none are quantised weights without their scale, or none.
WEIGHT_DTYPES = ("F64", "F32", "F16", "BF16")
CODE_DTYPES = {
    torch.uint8: "U8", torch.int8: "I8", torch.int32: "I32", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip
Shapes = dict[str, tuple[int, ...]]
# Of transformers 5, in the order of a tensor's rows.
FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
# Of keys and values, for a cache of 8 bits.
CACHE_SCALES = re.compile(r"\.(kv_scale|[kqv]_scale|[kv]_proj\.output_scale)$")
CODES = r"(qweight|qzeros|scales|g_idx|weight_(packed|scale\w*|zero_point|shape)|input_scale|absmax|quant_map|SCB)"
STRANGERS = (
    (r"\.lora_[AB]\.|^base_model\.", "it is an adapter's: merge that into its model first, with peft"),
    (
        r"\.experts\.(gate_up_proj|down_proj)",
        "experts in one tensor are read as transformers has Mixtral's; model_impl='transformers' reads others",
    ),
    (rf"\.\w*(gate|router)\.{CODES}$", f"a router must not be quantised; {WAY_OUT}"),
    (rf"\.{CODES}(\.|$)", f"it is of a layer that is not quantised, by quantization_config in config.json; {WAY_OUT}"),
    (r"vision|visual|audio|projector|language_model", "it is of a model for more than text: save that for text alone"),
    (r"^(score|classifier|v_head|summary)\b", "it is a classifier's or a reward model's head, which draws no tokens"),
)
"""Names of tensors that models have no place for, and why."""


class TensorInfo(NamedTuple):
    """What the head of a weight file says about a tensor, and where it is."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    stored: str
    """Its name there."""
    expert: int | None = None
    """Of a tensor [experts, rows, columns]: `shape` is a part of this one's, from the row `first` on."""
    first: int = 0

    def open(self, file: Any) -> Any:
        """From `path`, opened by safetensors: what reads the part that it is asked for, and no more."""
        stored = file.get_slice(self.stored)
        return stored if self.expert is None else OneExpert(stored, self)

    def read(self, file: Any) -> torch.Tensor:
        whole = tuple(slice(0, size) for size in self.shape)
        return file.get_tensor(self.stored) if self.expert is None else self.open(file)[whole]  # type: ignore[no-any-return]


class OneExpert:
    """An expert's part of a tensor that all experts are in, with the methods of a slice of safetensors."""

    def __init__(self, stored: Any, info: TensorInfo) -> None:
        self.stored, self.info = stored, info

    def get_shape(self) -> tuple[int, ...]:
        return self.info.shape

    def __getitem__(self, cut: tuple[slice, ...]) -> torch.Tensor:
        (rows, columns), first = cut, self.info.first
        part: torch.Tensor = self.stored[self.info.expert, first + rows.start : first + rows.stop, columns]
        return part


def open_weights(path: Path) -> Any:
    """A file of weights, as safetensors opens one."""
    return GGUFWeights(path) if is_gguf(path) else safe_open(path, framework="pt")


def read_heads(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor, by its name, from the heads of the weight files: no tensor is read.

    Raises:
        ModelLoadError: a file is broken, or a tensor is in two of them, by name.
    """
    if is_gguf(folder):
        heads = gguf_tensors(folder)
        return {name: TensorInfo(dtype, shape, folder, stored, expert) for name, dtype, shape, stored, expert in heads}
    found: dict[str, TensorInfo] = {}
    for path in checkpoint_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                parts = ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118  not a dict
                head = {name: TensorInfo(part.get_dtype(), tuple(part.get_shape()), path, name) for name, part in parts}
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}; was it downloaded to its end?") from None
        if twice := found.keys() & head.keys():
            raise ModelLoadError(f"{path} holds {min(twice)} once more: another file of the folder has it already")
        found |= head
    return found


def check_checkpoint(model: DecoderForCausalLM, found: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Compare the tensors that the model asks for with those that were found: those to read, by the model's names.

    Raises:
        ModelLoadError: a tensor is missing, misshapen, quantized, or has no place in the model; by name.
    """
    slots = dict(model.checkpoint_slots())
    wanted = {name: tuple(slot.shape) for name, slot in slots.items()}
    found = _by_our_names(model, wanted, found)
    if scales := [name for name in found if CACHE_SCALES.search(name)]:
        logger.warning("%d scales for a KV cache of 8 bits are not used, %s among them", len(scales), scales[0])
    if model.lm_head.tied and HEAD in found:  # load_weights() decides between the two
        wanted[HEAD] = wanted[EMBEDDING]
        if EMBEDDING not in found:
            del wanted[EMBEDDING]
    for name in [name for name in found if name not in wanted]:
        info = found.pop(name)
        if why := _why_a_stranger(model, name, info, wanted):
            shown = f"{info.stored} {info.shape}"
            raise ModelLoadError(f"the checkpoint has a tensor that the model has no place for: {shown}; {why}")
    for name, info in found.items():
        if info.shape != wanted[name]:
            raise ModelLoadError(f"tensor {name} has shape {info.shape}, the configuration asks for {wanted[name]}")
    check_dtypes(found, slots)
    if names := sorted(wanted.keys() - found.keys()):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise ModelLoadError(f"the checkpoint lacks {len(names)} tensor(s): {shown}")
    return found


def _by_our_names(model: DecoderForCausalLM, wanted: Shapes, found: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Without what wrappers put before names, and those of transformers 5, as it has a model in memory:

    module.model.norm.weight, _orig_mod.model.norm.weight    of DataParallel's and torch.compile's wrappers
    model.layers.0.mlp.gate.weight                           Mixtral's; files have model.layers.0.block_sparse_moe.gate
    model.layers.0.mlp.experts.down_proj                     all experts' [hidden, size] in one
    model.layers.0.mlp.experts.gate_up_proj                  and their gates' rows before their ups', [2 * size, hidden]
    layers.0.mlp.up_proj.weight                              a model's without a head, as Qwen3-Embedding
    """
    spec, named = model.decoder_spec, dict[str, TensorInfo]()
    for stored, info in found.items():
        bare = stored.replace("_orig_mod.", "").removeprefix("module.")
        if spec.pools and bare in (HEAD, CLASSIFIER):  # worker/pooler.py has it
            continue
        if bare not in wanted and f"model.{bare}" in wanted:
            bare = f"model.{bare}"
        names = {bare if bare in wanted else spec.name_in_checkpoint(bare): info}
        block, _, layer = bare.rpartition(".")
        if block.endswith(".experts") and layer in FUSED and spec.experts is not None and len(info.shape) == 3:
            (count, rows, columns), parts = info.shape, FUSED[layer]
            rows //= len(parts)
            each = {
                spec.name_in_checkpoint(f"{block}.{expert}.{part}.weight"): info._replace(
                    shape=(rows, columns), expert=expert, first=number * rows
                )
                for expert in range(min(count, spec.experts.num_experts))
                for number, part in enumerate(parts)
            }
            if count == spec.experts.num_experts and all(wanted.get(name) == (rows, columns) for name in each):
                names = each
        for name, part in names.items():
            if name in named:
                raise ModelLoadError(f"the checkpoint has {name} twice: as {named[name].stored} and as {stored}")
            named[name] = part
    return named


def _why_a_stranger(model: DecoderForCausalLM, name: str, info: TensorInfo, wanted: Shapes) -> str | None:
    """None: the model can do without it. It follows from rope_parameters, is for another cache or for guesses (MiMo's
    multi-token prediction), is the other form of a GGUF file's tensor, or a bias of zeros, which old GPTQ files have
    for each layer."""
    if name.endswith("rotary_emb.inv_freq") or CACHE_SCALES.search(name) or name.startswith("model.mtp_layers."):
        return None
    if is_gguf(info.path) and (name.endswith(".blocks") or f"{name.removesuffix('weight')}blocks" in wanted):
        return None
    if name.endswith(".bias") and name.removesuffix("bias") + "qweight" in wanted:
        with open_weights(info.path) as file:
            return "it is a bias that is not zero, of a layer that has none" if info.read(file).any() else None
    if model.lm_head.tied and name.startswith("lm_head."):
        return "tie_word_embeddings in config.json must be false for a head of its own"
    if (number := re.match(r"model\.layers\.(\d+)\.", name)) and int(number[1]) >= model.decoder_spec.num_layers:
        return f"num_hidden_layers in config.json is {model.decoder_spec.num_layers}"
    known = (why for pattern, why in STRANGERS if re.search(pattern, info.stored))
    return next(known, "is config.json the one that belongs to these weights?")


def check_weights_fit(weights: int, device: torch.device) -> int:
    """The bytes of the device's whole memory. Raises ModelLoadError where `weights` are more."""
    memory = total_memory_bytes(device)
    if weights > memory:
        raise ModelLoadError(f"the weights take {weights / 2**30:.1f} GiB, {device} has {memory / 2**30:.1f}")
    return memory


def check_memory(model: DecoderForCausalLM, max_model_len: int, device: torch.device) -> None:
    """Refuse what the device could never hold.

    Raises:
        ModelLoadError: the weights, or the table of RoPE's angles, are larger than the whole memory.
    """
    weights = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    memory = check_weights_fit(weights, device)
    # While it is made, the table of cos and sin is in memory three times, in float32.
    angles = 3 * 4 * max_model_len * model.decoder_spec.head_size
    if weights + angles > memory:
        raise ModelLoadError(
            f"max_model_len must be less, got {max_model_len}: RoPE's angles take {angles / 2**30:.1f} GiB beside "
            f"weights of {weights / 2**30:.1f}, {device} has {memory / 2**30:.1f}"
        )


def check_dtypes(found: dict[str, TensorInfo], slots: dict[str, torch.Tensor]) -> None:
    """Raise for a tensor of other numbers than its slot holds: converted, they would be wrong weights."""
    for name, slot in slots.items():
        dtypes = (CODE_DTYPES[slot.dtype],) if slot.dtype in CODE_DTYPES else WEIGHT_DTYPES
        if name in found and found[name].dtype not in dtypes:
            raise ModelLoadError(
                f"tensor {name} holds {found[name].dtype}, the configuration asks for {' or '.join(dtypes)}"
            )
