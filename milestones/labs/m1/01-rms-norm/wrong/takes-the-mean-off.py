class RMSNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide - wide.mean(dim=-1, keepdim=True)
        inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * inverse * self.weight.float()).to(x.dtype)
