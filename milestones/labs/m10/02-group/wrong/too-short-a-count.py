def group(experts: torch.Tensor, num_experts: int) -> Groups:
    flat = experts.flatten()
    return Groups(flat.argsort(stable=True), torch.bincount(flat).cumsum(0))
