def awq_scales(
    weight: torch.Tensor, statistics: Statistics, source: Source, scheme: QuantScheme, stored: torch.dtype
) -> torch.Tensor:
    size = source.shared(statistics.mean_size).clamp(min=SMALLEST)
    best, least = torch.ones_like(size), torch.inf
    for step in range(STEPS):
        scales = size ** (step / STEPS)
        scales = scales / (scales.max() * scales.min()).sqrt()
        rounded = Grid.of(weight * scales, scheme, stored).round(weight * scales).dequantize()
        error = output_error(rounded - weight, statistics.hessian).sum().item()
        if error < least:
            best, least = scales, error
    return best
