def tail_mask(num_queries: int, seq_len: int, device: torch.device) -> torch.Tensor:
    return torch.ones(num_queries, seq_len, dtype=torch.bool, device=device).tril()
