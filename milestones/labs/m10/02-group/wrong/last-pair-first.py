def group(experts: torch.Tensor, num_experts: int) -> Groups:
    flat = experts.flatten()
    order = flat.flip(0).argsort(stable=True)
    return Groups(len(flat) - 1 - order, torch.bincount(flat, minlength=num_experts).cumsum(0))
