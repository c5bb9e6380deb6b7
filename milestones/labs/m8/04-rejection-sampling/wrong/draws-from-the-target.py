def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    at = drafted.unsqueeze(-1)
    ratio = target.gather(1, at).double() / draft.gather(1, at).double()
    uniform = uniforms(generators, target.device)
    accepted = uniform < ratio
    rest = torch.where(accepted, 0.0, (uniform - ratio) / (1.0 - ratio))
    replacement = draw_inverse_cdf(Candidates(target), rest)
    accepted = accepted.squeeze(-1)
    return accepted, torch.where(accepted, drafted, replacement)
