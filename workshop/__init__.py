"""The embedded model's workshop: the data it learns, the training loop, the judge and the glossary page.

It stands beside the package and is no part of it: nothing in `folovllm/` or in a milestone's tree imports it.

Everything that the shipped folder `folovllm/assets/embedded` holds is made here, from text files a person can read.
`python -m workshop.train` makes it again, `python -m workshop.judge` says how good it is. The draft model beside it is
made by `python -m workshop.train --draft --tokenizer folovllm/assets/embedded`; `python -m workshop.guesses` says how
many tokens a step its guesses bring, and makes a table of n-grams of the same text. The head that reads the embedded
model's hidden states is made by `python -m workshop.head`.
One thing besides: `python -m workshop.smollm2` makes a Hugging Face folder of a real model, to test and to talk to.
`python -m workshop.vllm_files WHEEL` lists the files of a vLLM wheel, which the map of the notes is held against.
`python -m workshop.running_example` runs three requests on every milestone and draws what its engine did.
And one for a machine with a GPU: `python -m workshop.gpu_kit` (`make gpu`) tests and measures all of the CUDA side.
"""
