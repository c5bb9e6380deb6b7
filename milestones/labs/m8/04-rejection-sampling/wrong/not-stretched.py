def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    at = drafted.unsqueeze(-1)
    residual = (target - draft).clamp(min=0.0)
    uniform = uniforms(generators, target.device)
    accepted = uniform < target.gather(1, at).double() / draft.gather(1, at).double()
    accepted = (accepted | (residual.amax(-1, keepdim=True) == 0)).squeeze(-1)
    return accepted, torch.where(accepted, drafted, draw_inverse_cdf(Candidates(residual), uniform))
