def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    at = drafted.unsqueeze(-1)
    residual = (target - draft).clamp(min=0.0)
    ratio = target.gather(1, at).double() / draft.gather(1, at).double()
    accepted = (uniforms(generators, target.device) < ratio) | (residual.amax(-1, keepdim=True) == 0)
    replacement = draw_inverse_cdf(Candidates(residual), uniforms(generators, target.device))
    accepted = accepted.squeeze(-1)
    return accepted, torch.where(accepted, drafted, replacement)
