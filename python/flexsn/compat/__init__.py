"""The seed's submodules by their names, for code that changes its imports only; each is thin over flexsn."""

from __future__ import annotations

from . import custom_ops, graph2triton, hop, info, kernel, template, torch2graph, wrapper

__all__ = ["custom_ops", "graph2triton", "hop", "info", "kernel", "template", "torch2graph", "wrapper"]
