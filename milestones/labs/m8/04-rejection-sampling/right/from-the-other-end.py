def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    at = drafted.unsqueeze(-1)
    share = (target.gather(1, at).double() / draft.gather(1, at).double()).clamp(max=1.0)
    residual = torch.relu(target - draft)
    share[residual.sum(-1) == 0] = 1.0
    number = 1.0 - uniforms(generators, target.device)  # in (0, 1]
    refused = number <= 1.0 - share
    line = residual.double().cumsum(-1)
    rest = torch.where(refused, number / (1.0 - share).clamp(min=1e-300), 1.0)
    replacement = torch.searchsorted(line, rest * line[:, -1:]).clamp(max=line.shape[-1] - 1)
    token_ids = torch.where(refused, replacement, at)
    return ~refused.squeeze(-1), token_ids.squeeze(-1)
