class RotaryEmbedding:
    def forward(self, positions: torch.Tensor) -> Rotary:
        cos, sin = self.cos_sin[positions].unbind(1)
        return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((sin, sin), dim=-1).unsqueeze(1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat((-b, a), dim=-1) * sin).to(x.dtype)
