"""Given classifiers as flat trees or ONNX graphs."""
