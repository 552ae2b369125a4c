"""Builds the parts of a decoder from ONNX operators."""
