"""A packed net in other programs, which one could take instead of the engine: PyTorch, ONNX Runtime, OpenVINO."""
