"""Low-rank adapters of models: files of PEFT and of llama.cpp, read into what they add."""
