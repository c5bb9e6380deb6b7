"""Speculative decoding: what guesses the next tokens, and which of the guesses are kept."""
