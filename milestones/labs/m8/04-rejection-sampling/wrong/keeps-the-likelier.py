def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    at = drafted.unsqueeze(-1)
    accepted = (target.gather(1, at) >= draft.gather(1, at)).squeeze(-1)
    replacement = draw_inverse_cdf(Candidates((target - draft).clamp(min=0.0)), uniforms(generators, target.device))
    return accepted, torch.where(accepted, drafted, replacement)
