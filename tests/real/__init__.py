"""A real model against Hugging Face: real weights, a real tokenizer, real chat. `make real` runs them."""
