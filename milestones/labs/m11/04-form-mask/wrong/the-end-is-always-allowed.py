class Grammar:
    def allowed(self, output_token_ids, ahead, vocab_size):
        state = self.look(output_token_ids, ahead)
        if state.bits is None:
            mask = np.zeros(vocab_size, bool)
        else:
            mask = np.unpackbits(state.bits.view(np.uint8), bitorder="little")[:vocab_size].astype(bool)
        eos = [token_id for token_id in self._compiler.eos_token_ids if token_id < vocab_size]
        mask[eos] = True
        return mask
