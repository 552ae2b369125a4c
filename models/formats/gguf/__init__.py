"""GGUF, the file format of llama.cpp: its header, weights, config and tokenizer.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
