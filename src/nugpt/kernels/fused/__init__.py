"""Triton kernels for a GPU, each the twin of a plain definition; every tensor has a replica axis R in front."""
