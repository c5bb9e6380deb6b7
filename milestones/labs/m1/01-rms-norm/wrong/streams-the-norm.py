class RMSNorm(nn.Module):
    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.forward(x if residual is None else x + residual)
        return x, x
