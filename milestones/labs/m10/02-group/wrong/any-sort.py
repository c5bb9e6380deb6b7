def group(experts: torch.Tensor, num_experts: int) -> Groups:
    chosen, order = experts.flatten().sort()
    return Groups(order, torch.searchsorted(chosen, torch.arange(num_experts), right=True))
