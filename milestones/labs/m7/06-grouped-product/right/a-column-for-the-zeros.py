class Codes:
    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """A zero is one more column of the group, by which the sum of its inputs is multiplied."""
        codes = self.values.float().unflatten(1, (-1, self.group_size))
        inputs = x.float().unflatten(1, (-1, self.group_size))
        if self.zero is not None:
            codes = torch.cat([codes, -self.zero.float()[..., None]], 2)
            inputs = torch.cat([inputs, inputs.sum(2, keepdim=True)], 2)
        out = torch.zeros(len(x), len(self.values))
        for group in range(self.scale.shape[1]):
            out.addcmul_(inputs[:, group] @ codes[:, group].T, self.scale[:, group])
        return out
