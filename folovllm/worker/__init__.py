"""Where requests and tensors meet, and the only place."""
