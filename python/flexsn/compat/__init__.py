"""The seed's submodules by their names, for code that changes its imports only; each is thin over flexsn."""

from __future__ import annotations

from . import custom_ops, hop, info, kernel, wrapper

__all__ = ["custom_ops", "hop", "info", "kernel", "wrapper"]
