"""Texts that are held to a form: a JSON schema, a regular expression, a choice, a grammar."""
