"""The Python of README runs as it stands there."""

from __future__ import annotations

import pathlib


def test_the_python_of_readme_runs_and_trains() -> None:
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    block = readme.split("```python\n")[1].split("```")[0]
    space: dict = {}
    exec(compile(block, "README.md", "exec"), space)
    assert space["spikes"].shape == (100, 8, 16, 32, 32)
    weight = space["neurons"].core.w
    assert weight.grad.shape == weight.shape and weight.grad.abs().sum() > 0
    assert len(space["neurons"].states) == 1
