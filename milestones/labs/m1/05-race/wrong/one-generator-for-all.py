def exponentials(shape: torch.Size, generators: Generators, device: torch.device) -> Tensor:
    noise = torch.empty(shape, dtype=torch.float32, device=device)
    seeded = [generator for generator in generators if generator is not None]
    return noise.exponential_(generator=seeded[0] if seeded else None)
