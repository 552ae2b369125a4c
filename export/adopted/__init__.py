"""Models that other programs exported as ONNX with past and present, as optimum does."""
