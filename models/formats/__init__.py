"""Files of weights: safetensors, GGUF, and what others quantized."""
