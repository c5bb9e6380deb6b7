class _State:
    def catch_up(self, tokens, eos_token_ids):
        while self.num_read < len(tokens) and not self.ended:
            token_id = tokens[self.num_read]
            if False:
                self.ended = True
            elif not self.matcher.consume_token(token_id):
                if "too many" in self.matcher.get_error():
                    raise self._too_complex()
                raise GrammarError(f"structured_outputs does not allow token {token_id} at place {self.num_read}")
            self.num_read += 1
