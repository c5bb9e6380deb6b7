class RotaryEmbedding(nn.Module):
    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.cos_sin[positions].unbind(1)
        return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((sin, -sin), dim=-1).unsqueeze(1)
