"""Onnx files."""
