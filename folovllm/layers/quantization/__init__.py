"""Weights of 4 or 8 bits: what a checkpoint says about them, its layout of them, and what multiplies by them.

vLLM: model_executor/layers/quantization/
"""
