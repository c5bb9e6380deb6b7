def group(experts: torch.Tensor, num_experts: int) -> Groups:
    chosen, order = experts.flatten().sort(stable=True)
    counts = chosen.unique_consecutive(return_counts=True)[1]
    return Groups(order, counts.cumsum(0))
