from types import SimpleNamespace

import torch

from folovllm.worker.kv_cache import kv_bytes_per_token
from lab_judge import expect, invariant


@invariant(1)
def test_one_layer_one_head():
    spec = SimpleNamespace(num_layers=1, num_heads=2, num_kv_heads=1, head_size=128)
    expect(kv_bytes_per_token(spec, torch.bfloat16), 512)


@invariant(1)
def test_qwen3():
    spec = SimpleNamespace(num_layers=28, num_heads=16, num_kv_heads=8, head_size=128)
    expect(kv_bytes_per_token(spec, torch.bfloat16), 114_688)


@invariant(1)
def test_each_model_has_its_own_figure():
    small = SimpleNamespace(num_layers=28, num_heads=16, num_kv_heads=2, head_size=64)
    large = SimpleNamespace(num_layers=28, num_heads=16, num_kv_heads=4, head_size=96)
    expect([kv_bytes_per_token(spec, torch.bfloat16) for spec in (small, large)], [14_336, 43_008])


@invariant(1)
def test_bytes_are_a_whole_number():
    spec = SimpleNamespace(num_layers=1, num_heads=2, num_kv_heads=1, head_size=128)
    expect(isinstance(kv_bytes_per_token(spec, torch.bfloat16), int), True)


@invariant(2)
def test_other_dtypes():
    spec = SimpleNamespace(num_layers=28, num_heads=16, num_kv_heads=8, head_size=128)
    expect([kv_bytes_per_token(spec, dtype) for dtype in (torch.float32, torch.uint8)], [229_376, 57_344])
