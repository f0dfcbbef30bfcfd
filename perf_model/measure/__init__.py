"""Programs that measure on a CUDA GPU: its ceilings, kernels to calibrate with, and points to judge by."""
