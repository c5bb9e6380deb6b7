class RotaryEmbedding:
    def forward(self, positions: torch.Tensor) -> Rotary:
        cos, sin = self.cos_sin[positions].repeat(1, 1, 2).unsqueeze(1).unbind(2)
        half = sin.shape[-1] // 2
        return cos, sin * torch.tensor([-1.0, 1.0], device=sin.device).repeat_interleave(half)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    points = torch.complex(*x.float().split(half, dim=-1))
    turned = points * torch.complex(cos[..., :half].contiguous(), sin[..., half:].contiguous())
    return torch.cat((turned.real, turned.imag), dim=-1).type_as(x)
