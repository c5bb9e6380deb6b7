def exponentials(shape: torch.Size, generators: Generators, device: torch.device) -> Tensor:
    noise = torch.empty(shape, dtype=torch.float32, device=device)
    for row, generator in enumerate(generators):
        noise[row] = torch.rand(shape[1], device=device, generator=generator)
    return noise
