def exponentials(shape: torch.Size, generators: Generators, device: torch.device) -> Tensor:
    noise = torch.empty(shape, dtype=torch.float32, device=device)
    if all(generator is None for generator in generators):
        return noise.exponential_()
    for row, generator in enumerate(generators):
        if generator is not None:
            noise[row].exponential_(generator=generator)
    return noise
