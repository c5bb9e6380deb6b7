class RMSNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        root = wide.square().mean(dim=-1, keepdim=True).sqrt()
        return (wide / (root + self.eps) * self.weight.float()).to(x.dtype)
