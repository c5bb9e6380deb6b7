def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = x if residual is None else x + residual
    return residual * torch.rsqrt(residual.pow(2).mean(dim=-1, keepdim=True) + eps) * weight, residual
