"""What each ONNX operator is in framework calls: tables by kind of operator."""
