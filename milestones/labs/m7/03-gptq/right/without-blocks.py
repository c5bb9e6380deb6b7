def gptq(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid) -> Codes:
    columns = sorted(range(weight.shape[1]), key=lambda column: -float(hessian[column, column]))
    upper = inverse_factor(hessian[columns][:, columns])
    meant, values = weight.clone(), torch.zeros(weight.shape, dtype=torch.int8)
    for turn, column in enumerate(columns):
        group = column * grid.scale.shape[1] // weight.shape[1]
        scale, zero = grid.scale[:, group], grid.zero[:, group]
        values[:, column] = to_codes(meant[:, column : column + 1], scale, zero, grid.bits).flatten()
        missing = meant[:, column] - (values[:, column].float() - zero.float()) * scale
        for later in range(turn + 1, len(columns)):
            meant[:, columns[later]] -= missing * (upper[turn, later] / upper[turn, turn])
    return grid.codes(values)
