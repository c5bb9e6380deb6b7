def unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    words = packed.long() % 2**32
    digits = [words // 2**at % 2**bits for at in range(0, 32, bits)]
    return torch.stack(digits, dim + 1).flatten(dim, dim + 1).to(torch.uint8)


def pack(numbers: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    each, turned = 32 // bits, numbers.int().transpose(0, dim)
    words = torch.zeros(-(-len(turned) // each), *turned.shape[1:], dtype=torch.int32)
    for place, digit in enumerate(turned):
        words[place // each] |= digit << (place % each * bits)
    return words.transpose(0, dim).contiguous()
