def pack(numbers: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    each = 32 // bits
    whole = numbers.shape[dim] // each * each
    digits = numbers.narrow(dim, 0, whole).long().unflatten(dim, (-1, each))
    words = (digits << torch.arange(0, 32, bits).view(-1, *[1] * (numbers.dim() - 1 - dim))).sum(dim + 1)
    return words.to(torch.int32)
