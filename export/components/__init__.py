"""The parts of a decoder as ONNX operators."""
