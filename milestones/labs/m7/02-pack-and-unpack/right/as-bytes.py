def unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    octets = packed.movedim(dim, -1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 4:
        octets = torch.stack([octets & 15, octets >> 4], -1).flatten(-2)
    return octets.movedim(-1, dim).contiguous()


def pack(numbers: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    last = numbers.movedim(dim, -1).to(torch.uint8)
    octets = torch.nn.functional.pad(last, (0, -last.shape[-1] % (32 // bits)))
    if bits == 4:
        octets = octets[..., ::2] | octets[..., 1::2] << 4
    return octets.clone(memory_format=torch.contiguous_format).view(torch.int32).movedim(-1, dim).contiguous()
