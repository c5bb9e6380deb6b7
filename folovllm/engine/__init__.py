"""Text in, the step loop, text out."""
