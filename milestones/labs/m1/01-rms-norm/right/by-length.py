def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    stream = x if residual is None else residual.add(x)
    wide = stream.to(torch.float64)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    root = torch.hypot(length / wide.shape[-1] ** 0.5, torch.full_like(length, eps**0.5))
    return wide.div(root).mul(weight).to(stream.dtype), stream
