"""Our weights as a model of OpenVINO's, operator by operator: what its own converter makes of a decoder, and no more.

    input_ids ─ embedding ─┬─ norm ─ q, k, v ─ rotate ─ past + new ─ attention ─ o ─(+)─ norm ─ MLP ─(+)─ … ─ logits
                           └──────────────────────────────────────────────────────┘

A past is a state of the model (ReadValue, Gather, Concat, Assign). The continuous batching pipeline looks for exactly
this shape, and puts its paged attention with its own cache, positions and masks there; so the mask here is a stand-in.
OpenVINO GenAI reads GGUF too, but of unquantised weights float16 only, and not float32 and bfloat16 as they are.

vLLM: none
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any


def write_model(folder: str) -> None:
    """openvino_model.xml and .bin beside weights.bin in `folder`.

    Raises:
        ValueError: an architecture or a rotation that is not drawn here.
    """
    ov: Any = import_module("openvino")
    given = json.loads((Path(folder) / "weights.json").read_text(encoding="utf-8"))
    import_module("gguf_file").architecture(given["config"])  # refuses what neither of the two knows
    model = Graph(folder, given).model()
    # Kept in the dtype that it has: by default float32 would become float16.
    ov.save_model(model, str(Path(folder) / "openvino_model.xml"), compress_to_fp16=False)


class Graph:
    """Builds the model; each method adds a part and returns its output."""

    def __init__(self, folder: str, given: dict[str, Any]) -> None:
        self.np: Any = import_module("numpy")
        self.ov: Any = import_module("openvino")
        self.op: Any = import_module("openvino.opset13")
        self.config = given["config"]
        self.tensors = {tensor["name"]: tensor for tensor in given["tensors"]}
        self.data = self.np.memmap(Path(folder) / "weights.bin", dtype=self.np.uint8, mode="r")
        config = self.config
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.sinks: list[Any] = []

    def model(self) -> Any:
        op, ov = self.op, self.ov
        ids = self._input("input_ids", [-1, -1], ov.Type.i64)
        mask = self._input("attention_mask", [-1, -1], ov.Type.i64)
        positions = self._input("position_ids", [-1, -1], ov.Type.i64)
        beams = self._input("beam_idx", [-1], ov.Type.i32)
        embedding = self._weight("model.embed_tokens.weight")
        x = op.gather(embedding, op.convert(ids, "i32"), self._int(0))
        rotary = self._rotary(positions)
        shown = op.unsqueeze(op.convert(mask, "f32"), self._int([1, 2]))
        batch = op.gather(op.shape_of(ids), self._int([0]), self._int(0))
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            h = self._norm(x, name + "input_layernorm.weight")
            x = op.add(x, self._attention(h, name + "self_attn.", layer, rotary, shown, beams, batch))
            h = self._norm(x, name + "post_attention_layernorm.weight")
            gate, up = self._linear(h, name + "mlp.gate_proj"), self._linear(h, name + "mlp.up_proj")
            x = op.add(x, self._linear(op.multiply(op.swish(gate), up), name + "mlp.down_proj"))
        head = self._weight("lm_head.weight") if "lm_head.weight" in self.tensors else embedding
        logits = op.matmul(self._norm(x, "model.norm.weight"), head, False, True)
        logits.output(0).set_names({"logits"})
        return ov.Model([op.result(logits)], self.sinks, [ids, mask, positions, beams], "decoder")

    def _attention(
        self, x: Any, name: str, layer: int, rotary: tuple[Any, Any], mask: Any, beams: Any, batch: Any
    ) -> Any:
        op, size = self.op, self.head_dim
        q = self._split(self._linear(x, name + "q_proj"), self.heads, name + "q_norm.weight")
        k = self._split(self._linear(x, name + "k_proj"), self.kv_heads, name + "k_norm.weight")
        v = self._split(self._linear(x, name + "v_proj"), self.kv_heads, name + "v_norm.weight")
        q, k = self._rotate(q, *rotary), self._rotate(k, *rotary)
        k = self._with_past(k, f"past_key_values.{layer}.keypresent.{layer}.key", beams, batch)
        v = self._with_past(v, f"past_key_values.{layer}.valuepresent.{layer}.value", beams, batch)
        if self.heads != self.kv_heads:
            k, v = self._repeat(k), self._repeat(v)
        out = op.scaled_dot_product_attention(q, k, v, mask, self._float(size**-0.5), causal=False)
        merged = op.reshape(op.transpose(out, self._int([0, 2, 1, 3])), self._int([0, 0, self.heads * size]), True)
        return self._linear(merged, name + "o_proj")

    def _split(self, x: Any, heads: int, norm: str) -> Any:
        """[batch, tokens, heads * size] -> [batch, heads, tokens, size], normalised where the model does so."""
        x = self.op.reshape(x, self._int([0, 0, heads, self.head_dim]), True)
        x = self._norm(x, norm) if norm in self.tensors else x
        return self.op.transpose(x, self._int([0, 2, 1, 3]))

    def _with_past(self, new: Any, name: str, beams: Any, batch: Any) -> Any:
        op, shape = self.op, self.ov.PartialShape([-1, self.kv_heads, -1, self.head_dim])
        sizes = op.concat([batch, self._int([self.kv_heads]), self._int([0]), self._int([self.head_dim])], 0)
        past = op.read_value(op.broadcast(self._float(0.0), sizes), name, self.ov.Type.f32, shape)
        whole = op.concat([op.gather(past, beams, self._int(0)), new], 2)
        self.sinks.append(op.assign(whole, name))
        return whole

    def _repeat(self, x: Any) -> Any:
        """Each head of K or V as many times as there are heads of q that read it."""
        op, shape = self.op, self.op.shape_of(x)
        part = [op.gather(shape, self._int([axis]), self._int(0)) for axis in range(4)]
        sizes = op.concat([part[0], part[1], self._int([self.heads // self.kv_heads]), part[2], part[3]], 0)
        wide = op.broadcast(op.unsqueeze(x, self._int(2)), sizes, broadcast_spec="BIDIRECTIONAL")
        return op.reshape(wide, self._int([0, self.heads, -1, self.head_dim]), True)

    def _rotary(self, positions: Any) -> tuple[Any, Any]:
        """cos and sin, [batch, 1, tokens, size], in the form in which a converted model computes them."""
        op, np = self.op, self.np
        rope = self.config.get("rope_parameters") or self.config
        inverse = 1.0 / float(rope["rope_theta"]) ** (np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        column = op.constant(inverse.astype(np.float32).reshape(1, -1, 1))
        row = op.convert(op.unsqueeze(positions, self._int(1)), "f32")
        wide = op.broadcast(
            column,
            op.concat([op.gather(op.shape_of(positions), self._int([0]), self._int(0)), self._int([1, 1])], 0),
            broadcast_spec="BIDIRECTIONAL",
        )
        angles = op.transpose(op.matmul(wide, row, False, False), self._int([0, 2, 1]))
        both = op.concat([angles, angles], -1)
        return op.unsqueeze(op.cos(both), self._int(1)), op.unsqueeze(op.sin(both), self._int(1))

    def _rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        op, half = self.op, self.head_dim // 2
        first, second = op.split(x, self._int(-1), 2).outputs()
        assert half * 2 == self.head_dim
        turned = op.concat([op.multiply(second, self._float(-1.0)), first], -1)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    def _norm(self, x: Any, name: str) -> Any:
        op = self.op
        mean = op.reduce_mean(op.power(x, self._float(2.0)), self._int([-1]), True)
        root = op.sqrt(op.add(mean, self._float(self.config["rms_norm_eps"])))
        return op.multiply(op.multiply(x, op.divide(self._float(1.0), root)), self._weight(name))

    def _linear(self, x: Any, name: str) -> Any:
        y = self.op.matmul(x, self._weight(name + ".weight"), False, True)
        return self.op.add(y, self._weight(name + ".bias")) if name + ".bias" in self.tensors else y

    def _weight(self, name: str) -> Any:
        """The tensor in its own dtype, widened where it is used: the plugin then multiplies in what it was told."""
        tensor = self.tensors[name]
        raw = self.data[tensor["offset"] : tensor["offset"] + tensor["bytes"]]
        kind = {"float32": self.ov.Type.f32, "float16": self.ov.Type.f16, "bfloat16": self.ov.Type.bf16}[
            tensor["dtype"]
        ]
        values = self.ov.Tensor(kind, self.ov.Shape(tensor["shape"]))
        values.data.view(self.np.uint8).reshape(-1)[:] = raw
        constant = self.op.constant(values)
        return constant if tensor["dtype"] == "float32" else self.op.convert(constant, "f32")

    def _input(self, name: str, shape: list[int], kind: Any) -> Any:
        node = self.op.parameter(shape, kind)
        node.set_friendly_name(name)  # the pipeline looks for some inputs by this name, for others by the tensor's
        node.output(0).set_names({name})
        return node

    def _int(self, value: int | list[int]) -> Any:
        return self.op.constant(self.np.array(value, dtype=self.np.int64))

    def _float(self, value: float) -> Any:
        return self.op.constant(self.np.array(value, dtype=self.np.float32))
