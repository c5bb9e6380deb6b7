def choose_victims(newest: Request, needy: Request) -> list[Sequence]:
    running = needy.get_seqs(SequenceStatus.RUNNING)
    return running if needy.sampling_params.use_beam_search else running[-1:]
