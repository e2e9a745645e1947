"""The seed's kernels around a step: the text of a Triton kernel that runs a device function over time.

Time is a loop of run-time length. A kernel takes what it reads, then what it writes, all dense, then `T`,
`NCL` and `dtype`; states are kept in the type of the memory that they are stored in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .graph2triton import compile_triton_code_str, named_by_content
from .info import FlexSNInfo

__all__ = [
    "get_flexsn_backward_kernel", "get_flexsn_forward_kernel", "get_flexsn_inference_final_state_kernel",
    "get_flexsn_inference_kernel",
]  # fmt: skip

BLOCK_NCL = 256


class GeneratedKernel:
    """A kernel that is launched as `kernel[grid](*tensors, T=, NCL=, dtype=)`. Its products and sums are not
    contracted, so that it computes what the interpreter of flexsn computes."""

    def __init__(self, name: str, code: str, verbose: bool = False) -> None:
        self.name, self.code = name, code
        self._kernel = compile_triton_code_str(code, name, verbose)

    def __repr__(self) -> str:
        return f"GeneratedKernel({self.name})"

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*tensors: Any, **sizes: Any) -> None:
            self._kernel[grid](*tensors, **sizes, enable_fp_fusion=False)

        return launch


def get_flexsn_inference_kernel(
    core_str: str, core_name: str, info: FlexSNInfo, verbose: bool = False
) -> GeneratedKernel:
    """Reads input sequences and initial states; writes output sequences and state sequences."""
    return _forward_in_time("inference", core_str, core_name, info, _plain(info), True, verbose)


def get_flexsn_inference_final_state_kernel(
    core_str: str, core_name: str, info: FlexSNInfo, verbose: bool = False
) -> GeneratedKernel:
    """Reads input sequences and initial states; writes output sequences and the last states."""
    return _forward_in_time("inference_final_state", core_str, core_name, info, _plain(info), False, verbose)


def get_flexsn_forward_kernel(
    core_str: str, core_name: str, info: FlexSNInfo, verbose: bool = False
) -> GeneratedKernel:
    """Reads input sequences and initial states; writes all that the forward graph returns, each once."""
    return _forward_in_time("forward", core_str, core_name, info, info.fwd_core_recipients, True, verbose)


def get_flexsn_backward_kernel(
    core_str: str, core_name: str, info: FlexSNInfo, verbose: bool = False
) -> GeneratedKernel:
    """Reads gradients of output and state sequences, then residuals; writes gradients of input sequences and
    initial states. The function takes residuals, then gradients."""
    outputs, states = [f"s{i}" for i in range(info.num_outputs)], [f"v{i}" for i in range(info.num_states)]
    inputs = [f"x{i}" for i in range(info.num_inputs)]
    residuals = [f"res{i}" for i in range(len(info.fwd_core_returns) - len(outputs) - len(states))]
    lines = []
    for v in states:
        wide = f"tl.float64 if grad_{v}_first_ptr.dtype.element_ty == tl.float64 else tl.float32"
        lines.append(f"    grad_{v} = tl.full((BLOCK_NCL,), 0.0, {wide})")
    lines += ["    for k in range(T):", "        row = tl.cast(T - 1 - k, tl.int64) * NCL + place"]
    lines += [f"        {name} = tl.load({name}_ptr + row, mask=mask)" for name in residuals]
    lines += [f"        grad_{s} = tl.load(grad_{s}_ptr + row, mask=mask)" for s in outputs]
    for v in states:
        arrived = f"tl.load(grad_{v}_ptr + row, mask=mask)"
        lines.append(f"        grad_{v} = grad_{v} + {arrived}.to(grad_{v}.dtype)")
    given = [*residuals, *(f"grad_{name}" for name in (*outputs, *states))]
    results = [f"grad_{x}" for x in inputs] + [f"new_{v}" for v in states]
    lines.append(f"        {', '.join(results)} = {core_name}({', '.join(given)})")
    lines += [f"        tl.store(grad_{x}_ptr + row, {_stored(f'grad_{x}')}, mask=mask)" for x in inputs]
    lines += [f"        grad_{v} = new_{v}.to(grad_{v}.dtype)" for v in states]
    lines += [
        f"    tl.store(grad_{v}_first_ptr + place, {_stored(f'grad_{v}', f'grad_{v}_first')}, mask=mask)"
        for v in states
    ]
    pointers = [f"grad_{name}_ptr" for name in (*outputs, *states)] + [f"{name}_ptr" for name in residuals]
    pointers += [f"grad_{x}_ptr" for x in inputs] + [f"grad_{v}_first_ptr" for v in states]
    return _kernel("backward", core_str, core_name, pointers, lines, verbose)


def _plain(info: FlexSNInfo) -> list[str]:
    return [f"s{i}" for i in range(info.num_outputs)] + [f"v{i}" for i in range(info.num_states)]


def _forward_in_time(
    kind: str,
    core_str: str,
    core_name: str,
    info: FlexSNInfo,
    recipients: Sequence[str],
    sequences: bool,
    verbose: bool,
) -> GeneratedKernel:
    """The kernel that calls a function `(*inputs, *states) -> recipients` step by step."""
    inputs, states = [f"x{i}" for i in range(info.num_inputs)], [f"v{i}" for i in range(info.num_states)]
    written = [name for name in recipients if name != "_"]
    lines = [
        f"    {v} = tl.load({v}_first_ptr + place, mask=mask).to({v}_ptr.dtype.element_ty)" for v in states
    ]
    lines += ["    for t in range(T):", "        row = tl.cast(t, tl.int64) * NCL + place"]
    lines += [f"        {x} = tl.load({x}_ptr + row, mask=mask)" for x in inputs]
    # A state keeps its type from step to step: what is returned goes by another name first.
    returned = [f"new_{name}" if name in states else name for name in recipients]
    lines.append(f"        {', '.join(returned)} = {core_name}({', '.join([*inputs, *states])})")
    lines += [f"        {v} = {_stored(f'new_{v}', v)}" for v in states]
    for name in written:
        if name not in states:
            lines.append(f"        tl.store({name}_ptr + row, {_stored(name)}, mask=mask)")
        elif sequences:
            lines.append(f"        tl.store({name}_ptr + row, {name}, mask=mask)")
    if not sequences:
        lines += [f"    tl.store({v}_ptr + place, {v}, mask=mask)" for v in states]
    pointers = [f"{x}_ptr" for x in inputs] + [f"{v}_first_ptr" for v in states]
    pointers += [f"{name}_ptr" for name in written]
    return _kernel(kind, core_str, core_name, pointers, lines, verbose)


def _stored(value: str, pointer: str | None = None) -> str:
    """A value as the memory behind a pointer holds it."""
    # Triton's interpreter makes no bfloat16 of a bool at once.
    wide = f"({value}.to(tl.float32) if {value}.dtype == tl.int1 else {value})"
    return f"{wide}.to({pointer or value}_ptr.dtype.element_ty)"


def _kernel(
    kind: str, core_str: str, core_name: str, pointers: Sequence[str], lines: Sequence[str], verbose: bool
) -> GeneratedKernel:
    body = "\n".join(
        [
            f"    {', '.join(pointers)},",
            f"    T, NCL, dtype: tl.constexpr, BLOCK_NCL: tl.constexpr = {BLOCK_NCL},",
            "):",
            "    place = tl.program_id(0).to(tl.int64) * BLOCK_NCL + tl.arange(0, BLOCK_NCL)",
            "    mask = place < NCL",
            *lines,
            "",
        ]
    )
    name = named_by_content(f"{core_name}_{kind}", core_str + body)
    head = "import triton\nimport triton.language as tl\n\n\n"
    core = core_str.removeprefix(head)
    code = f'{head}{core}\n\n@triton.jit(do_not_specialize=["T"])\ndef {name}(\n{body}'
    return GeneratedKernel(name, code, verbose)
