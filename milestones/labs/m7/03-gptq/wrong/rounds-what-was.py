def gptq(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid) -> Codes:
    size = weight.shape[1]
    order = hessian.diag().argsort(descending=True, stable=True)
    group = order // (size // grid.scale.shape[1])
    upper = inverse_factor(hessian[order][:, order])
    left = weight[:, order]
    values = torch.empty_like(weight, dtype=torch.int8)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        errors = torch.empty_like(left[:, start:end])
        for n in range(start, end):
            scale, zero = grid.scale[:, group[n]], grid.zero[:, group[n]]
            codes = to_codes(weight[:, order][:, n, None], scale, zero, grid.bits)[:, 0]
            error = (left[:, n] - (codes.float() - zero) * scale) / upper[n, n]
            left[:, n:end] -= torch.outer(error, upper[n, n:end])
            values[:, order[n]] = codes
            errors[:, n - start] = error
        left[:, end:] -= errors @ upper[start:end, end:]
    return grid.codes(values)
