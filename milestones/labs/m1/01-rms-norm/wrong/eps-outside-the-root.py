def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = x if residual is None else x + residual
    wide = residual.float()
    root = wide.square().mean(dim=-1, keepdim=True).sqrt()
    return (wide / (root + eps) * weight.float()).to(x.dtype), residual
