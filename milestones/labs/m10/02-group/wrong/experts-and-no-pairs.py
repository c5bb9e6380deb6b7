def group(experts: torch.Tensor, num_experts: int) -> Groups:
    chosen = experts.flatten().sort(stable=True).values
    return Groups(chosen, torch.searchsorted(chosen, torch.arange(num_experts), right=True))
