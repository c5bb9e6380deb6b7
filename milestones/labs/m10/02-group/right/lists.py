def group(experts: torch.Tensor, num_experts: int) -> Groups:
    flat = experts.flatten().tolist()
    order = [pair for number in range(num_experts) for pair, expert in enumerate(flat) if expert == number]
    ends = [sum(expert <= number for expert in flat) for number in range(num_experts)]
    return Groups(torch.tensor(order), torch.tensor(ends))
