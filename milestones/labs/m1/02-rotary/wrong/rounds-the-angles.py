def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return x * cos.to(x.dtype) + swapped * sin.to(x.dtype)
