def choose_victims(newest: Request, needy: Request) -> list[Sequence]:
    running = newest.get_seqs(SequenceStatus.RUNNING)
    alone = newest is needy and not newest.sampling_params.use_beam_search
    return running[:1] if alone else running
