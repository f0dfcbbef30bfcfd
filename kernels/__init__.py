"""Fused kernels, each beside its plain PyTorch form.

Callers opt in to a kernel by naming its backend. Importing this package needs torch alone. A call of a
backend that cannot run raises an error with the reason.
"""
