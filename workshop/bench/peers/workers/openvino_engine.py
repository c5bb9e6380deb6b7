"""OpenVINO GenAI's continuous batching, step by step, on a folder that optimum-intel wrote. vLLM: none"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("numpy", "openvino", "openvino_genai")
PRECISIONS = {"float32": ("f32", "FP32"), "bfloat16": ("bf16", "BF16"), "float16": ("f16", "FP16")}  # its two names
BLOCK = 32  # tokens of the CPU plugin's cache


class Engine:
    """Blocks for `max_num_seqs` sequences of `max_model_len` tokens; prefix caching off.

    Products and the KV cache are in `dtype`; left to itself the plugin would choose fewer bits for the cache. On a CPU
    without units for `dtype` it takes both in float32 only, and the table says so. Where weights have 4 or 8 bits, a
    product rounds its inputs to 8 bits in groups of 32: the plugin's default.
    """

    def __init__(
        self, folder: str, dtype: str, weights: str, max_model_len: int, max_num_seqs: int, threads: int
    ) -> None:
        self.np: Any = import_module("numpy")
        self.ov: Any = import_module("openvino")
        self.genai: Any = import_module("openvino_genai")
        self.version: str = self.genai.__version__
        scheduler = self.genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = max_num_seqs
        scheduler.num_kv_blocks = max_num_seqs * (-(-max_model_len // BLOCK) + 1)
        precision, unit = PRECISIONS[dtype]
        self.dtype = weights
        if unit not in self.ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            precision, self.dtype = "f32", f"{weights}, computed in float32"
        properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": threads,
        }
        self.pipeline = self.genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        self._runs = 0

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> dict[str, list[Any]]:
        handles = []
        for prompt, count in zip(prompts, num_tokens):  # noqa: B905  any Python 3
            # An EOS has to be named, and is then ignored.
            config = self.genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, eos_token_id=0, do_sample=False)
            self._runs += 1
            ids = self.ov.Tensor(self.np.array([prompt], dtype=self.np.int64))
            handles.append(self.pipeline.add_request(self._runs, ids, config))
        tokens: list[list[int]] = [[] for _ in prompts]
        steps: list[Any] = []
        while self.pipeline.has_non_finished_requests():
            start = time.perf_counter()
            self.pipeline.step()
            seconds = time.perf_counter() - start
            new = [_read(handle) for handle in handles]
            prefill = any(ids and not mine for ids, mine in zip(new, tokens)) or not any(new)  # noqa: B905
            for mine, ids in zip(tokens, new):  # noqa: B905
                mine += ids
            steps.append((seconds, sum(map(len, new)), prefill))
        return {"steps": steps, "tokens": tokens}


def _read(handle: Any) -> list[int]:
    """The tokens that a request got in the last step."""
    return [id for output in handle.read().values() for id in output.generated_ids] if handle.can_read() else []
