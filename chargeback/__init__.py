"""Turns what GPUs on Kubernetes did into invoices that add up to what the nodes cost."""

__version__ = "0.1.0"
