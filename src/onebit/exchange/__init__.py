"""A packed net for other programs: ONNX, QONNX, arrays for NumPy. `onebit.convert` writes them."""
