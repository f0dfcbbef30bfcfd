"""Fused kernels for what the reference does in many steps, each opt-in and beside its plain PyTorch form.

Importing this package needs torch alone. A backend that cannot run says why when it is asked for.
"""
