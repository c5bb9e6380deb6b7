"""OpenVINO GenAI's continuous batching pipeline on our weights, whose model openvino_graph.py writes. vLLM: none"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("numpy", "openvino", "openvino_genai")
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
BLOCK = 32  # tokens: the CPU plugin's block
Step = tuple[float, int, bool]


class Engine:
    """A pipeline with blocks for `max_num_seqs` sequences of `max_model_len` tokens; prefix caching off.

    Products and the KV cache are in `dtype`: left to itself the plugin would keep the cache in 8 bits.
    """

    def __init__(self, weights: str, dtype: str, max_model_len: int, max_num_seqs: int, threads: int) -> None:
        import_module("openvino_graph").write_model(weights)
        self.np: Any = import_module("numpy")
        self.ov: Any = import_module("openvino")
        self.genai: Any = import_module("openvino_genai")
        self.version: str = self.genai.__version__
        scheduler = self.genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = max_num_seqs
        scheduler.num_kv_blocks = max_num_seqs * (-(-max_model_len // BLOCK) + 1)
        properties = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "KV_CACHE_PRECISION": PRECISIONS[dtype],
            "INFERENCE_NUM_THREADS": threads,
        }
        self.pipeline = self.genai.ContinuousBatchingPipeline(weights, scheduler, "CPU", properties)
        self._next_id = 0

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> tuple[list[Step], list[list[int]]]:
        handles = []
        for prompt, count in zip(prompts, num_tokens):  # noqa: B905  any Python 3
            # An EOS is asked for, and then ignored.
            config = self.genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, eos_token_id=0, do_sample=False)
            ids = self.ov.Tensor(self.np.array([prompt], dtype=self.np.int64))
            handles.append(self.pipeline.add_request(self._next_id, ids, config))
            self._next_id += 1
        tokens: list[list[int]] = [[] for _ in prompts]
        steps: list[Step] = []
        while self.pipeline.has_non_finished_requests():
            start = time.perf_counter()
            self.pipeline.step()
            seconds = time.perf_counter() - start
            count, prefill = 0, False
            for mine, handle in zip(tokens, handles):  # noqa: B905
                if handle.can_read():
                    prefill |= not mine
                    new = [token for output in handle.read().values() for token in output.generated_ids]
                    mine += new
                    count += len(new)
            steps.append((seconds, count, prefill or not count))
        return steps, tokens
