"""The embedded model's workshop: the data it learns, the training loop, the judge and the glossary pages.

Everything that the shipped folder `folovllm/assets/embedded` holds is made here, from text files a person can read.
`python -m folovllm.tiny.train` makes it again, `python -m folovllm.tiny.judge` says how good it is.
"""
