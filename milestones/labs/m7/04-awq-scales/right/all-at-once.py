def awq_scales(
    weight: torch.Tensor, statistics: Statistics, source: Source, scheme: QuantScheme, stored: torch.dtype
) -> torch.Tensor:
    size = torch.maximum(source.shared(statistics.mean_size), torch.tensor(SMALLEST))
    powers = torch.arange(STEPS)[:, None] / STEPS
    logs = powers * size.log()
    candidates = (logs - (logs.amax(1, keepdim=True) + logs.amin(1, keepdim=True)) / 2).exp()

    def error(scales: torch.Tensor) -> float:
        scaled = weight * scales
        change = Grid.of(scaled, scheme, stored).round(scaled).dequantize() / scales - weight
        return float(output_error(change, statistics.hessian).sum())

    return min(candidates, key=error)
