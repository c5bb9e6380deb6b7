def group(experts: torch.Tensor, num_experts: int) -> Groups:
    chosen, order = experts.flatten().sort(stable=True)
    return Groups(chosen, torch.searchsorted(chosen, torch.arange(num_experts), right=True))
