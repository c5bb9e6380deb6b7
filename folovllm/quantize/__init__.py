"""`folovllm quantize`: makes a checkpoint of 4 or 8 bits out of one of 16, in compressed-tensors' format.

    text ─▶ windows ─▶ embedding ─▶ layer 0 ─▶ layer 1 ─▶ … ─▶ loss on held-out text
                                      │
                                      what its products read ─▶ [fold ─▶] round ─▶ codes, written at once

    recipe.py        what is asked for, and how config.json says it
    calibration.py   text as batches of hidden states; what a product's inputs were like
    rounding.py      a weight's grid: round to nearest
    gptq.py          round, and let the columns that are left make up for it
    folding.py       AWQ and SmoothQuant: scale a product's inputs down and its columns up before that
    layer.py         one layer: take statistics of its products' inputs, fold, round
    layerwise.py     one layer after the other
    folder.py        tensors read one at a time, written in shards, a folder that appears when it is whole
    report.py        bytes, losses, errors

vLLM: none; its project llm-compressor makes such folders
"""
