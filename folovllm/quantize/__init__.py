"""`folovllm quantize`: makes a checkpoint of 4 or 8 bits out of one of 16, in compressed-tensors' format.

    text ─▶ windows ─▶ embedding ─▶ layer 0 ─▶ layer 1 ─▶ … ─▶ loss on held-out text
                                      │
                                      what its products read ─▶ [fold ─▶] round ─▶ codes, written at once

vLLM: none; its project llm-compressor makes such folders
"""
