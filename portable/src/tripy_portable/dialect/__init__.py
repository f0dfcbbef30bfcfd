"""The TensorRT dialect: its operations' definitions (`definitions`), and their builders (`builders`)."""
