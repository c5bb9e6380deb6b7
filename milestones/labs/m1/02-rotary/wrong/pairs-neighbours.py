class RotaryEmbedding(nn.Module):
    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.cos_sin[positions].unbind(1)
        signed = torch.stack((-sin, sin), dim=-1).flatten(-2)
        return cos.repeat_interleave(2, dim=-1).unsqueeze(1), signed.unsqueeze(1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    swapped = wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (wide * cos + swapped * sin).to(x.dtype)
