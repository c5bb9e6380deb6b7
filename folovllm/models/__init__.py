"""Decoder models on flat tokens, and how their weights get in."""
