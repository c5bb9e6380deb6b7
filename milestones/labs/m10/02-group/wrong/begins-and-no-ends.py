def group(experts: torch.Tensor, num_experts: int) -> Groups:
    chosen, order = experts.flatten().sort(stable=True)
    return Groups(order, torch.searchsorted(chosen, torch.arange(num_experts)))
