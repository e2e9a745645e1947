"""A plugin of pytest: what a test makes without naming a device lies on a GPU. With it the tests of the CPU's path are
tests of CUDA kernels: `pytest -p on_cuda tests/python/test_captures.py`, this folder being in PYTHONPATH."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

# torch reads the sources of what these call; with what stands for it below there would be none.
importlib.import_module("torch._decomp.decompositions_for_jvp")

FACTORIES = (
    *("arange", "empty", "eye", "full", "linspace", "ones"),
    *("rand", "randint", "randn", "randperm", "tensor", "zeros"),
)

# By the end of a test's name.
LEFT_OUT = {
    r"on_one_device|keep_the_device_of_the_examples|device_of_the_input|checks_its_arguments|arguments_are_checked"
    r"|on_several_devices_are_refused.*|is on cpu, .*|no_steps_give_what_templates_say\[.*"
    r"|\[\w+: (examples on two devices|two devices|on another device|kernel on two devices|a state on another device)\]"
    r"|\[operators: more elements than memory\]": "names the CPU in what it expects",
    r"\[calling: an array of NumPy\]": "a GPU's tensor becomes none",
    r"\[library: tau learned out of its range.*\]": "no call waits to read a GPU's memory",
    r"the_way_out\[scalar\]|refused_at_its_line\[(filled|a range|a list|a list by keyword)\]": "expects its own line, "
    "not one of this file",
    r"of_the_equation\[fused-f\d\d-(stbif|i?lif.*|simple_lif.*|ottt_lif|sltt_lif|non_spiking_lif|synaptic_li)\]"
    r"|keeps_the_potentials\[fused\]": "torch multiplies by the reciprocal on a GPU where its CPU divides",
    r"in_its_own_backward\[<lambda>4-shape\d\]": "torch's addcdiv rounds once less on a GPU",
    r"opcheck_passes_forward\[.*-training.*\]": "two places after the states that forward keeps are not written",
    r"foresee_shapes_and_types\[.*\]": "meta tensors have the plans of a CPU",
    r"other_threads_run_while_an_operator_does": "a call queues work and is over",
    r"ten_layers_of_the_same_neuron_compile_one_kernel": "counts the files of a CPU's kernels",
    r"the_while_loop_copies_in_proportion_to_the_steps": "counts a CPU's memory",
    r"numbers_that_change\[.*\]|without_our_guards_still_sees_plain_values": "torch.compile makes tensors of numbers, "
    "which must not lie on a GPU",
}


def on_a_gpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if not any(kwargs.get(name) is not None for name in ("device", "generator", "out")):
            kwargs["device"] = "cuda"
        return make(*args, **kwargs)

    return made


for name in FACTORIES:
    setattr(torch, name, on_a_gpu(getattr(torch, name)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for names, why in LEFT_OUT.items():
            if re.search(f"(?:{names})$", item.name):
                item.add_marker(pytest.mark.skip(reason=why))
