"""What all Python tests share: the package of this checkout where none is installed, and a fixed start."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest
import torch

if importlib.util.find_spec("flexsn") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))


@pytest.fixture(autouse=True)
def same_start_for_every_test() -> None:
    torch.manual_seed(42)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list:
    """The stand-ins for the fused path that the modules of a test made."""
    import flexsn.neuron
    from flexsn_cores import Recorded

    monkeypatch.setattr(flexsn.neuron, "Fused", Recorded)
    monkeypatch.setattr(Recorded, "made", [])
    return Recorded.made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what was left out and why, in the form that `make test` repeats at its end."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"left out: {report.nodeid} ({reason.removeprefix('Skipped: ')})")
