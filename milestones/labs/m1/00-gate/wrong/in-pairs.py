def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate_up[..., 0::2]) * gate_up[..., 1::2]
