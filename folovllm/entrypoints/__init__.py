"""What users call: the LLM class and the command line."""
