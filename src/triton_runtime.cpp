#include "triton_runtime.h"

namespace flexsn {

std::string_view triton_runtime() {
  return R"(class Parameter(NamedTuple):
    """Where elements find their entry: element n has entry (n // inner) % count of a row."""

    given: torch.Tensor
    values: torch.Tensor
    stride: int
    inner: int
    count: int
    shape: tuple
    dimensions: list


def dimensions_of(step, shape):
    """[size, has the parameter it?] of the step's dimensions: ones dropped, neighbours of one kind merged."""
    merged = []
    for place, size in enumerate(step):
        if size == 1:
            continue
        own = place - len(step) + len(shape)
        kept = own >= 0 and shape[own] == size
        if merged and merged[-1][1] == kept:
            merged[-1][0] *= size
        else:
            merged.append([size, kept])
    return merged


def checked(name, tensor, dtype, shape):
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"{name} must be {dtype} of shape {list(shape)}, found {tensor.dtype} of shape "
            f"{list(tensor.shape)}"
        )
    return tensor


def as_rows(name, tensor, dtype, shape):
    """A sequence whose steps lie dense, at any distance."""
    dense = tensor.is_contiguous() or (len(tensor) > 0 and tensor[0].is_contiguous())
    return checked(name, tensor if dense else tensor.contiguous(), dtype, shape)


def as_state(name, tensor, dtype, step):
    """One step; None: it starts at its initial value."""
    return None if tensor is None else checked(name, tensor, dtype, step).contiguous()


def as_parameter(name, value, dtype, device, step, steps=None):
    """A number or tensor that broadcasts to the step; `steps`: it has an entry for each."""
    number = () if steps is None else (steps,)  # the same at each step
    given = value if isinstance(value, torch.Tensor) else torch.full(number, value, dtype=dtype, device=device)
    if given.dtype != dtype or given.device != device:
        raise ValueError(f"{name} must be {dtype} on {device}, found {given.dtype} on {given.device}")
    values = given
    shape = tuple(values.shape)
    if steps is not None:
        if not shape or shape[0] != steps:
            raise ValueError(
                f"{name} changes with time: its shape must start with {steps}, found {list(shape)}"
            )
        shape = shape[1:]
    fits = len(shape) <= len(step) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(step))
    )
    if not fits:
        raise ValueError(
            f"{name} has shape {list(shape)}, which does not broadcast to a step of {list(step)}"
        )
    dimensions = dimensions_of(step, shape)
    kept = [place for place, (_, own) in enumerate(dimensions) if own]
    inner, count = 1, 1
    if len(kept) == 1:
        count = dimensions[kept[0]][0]
        inner = math.prod(size for size, _ in dimensions[kept[0] + 1 :])
    elif kept:  # no one index finds the entries: they are written out
        count = math.prod(step)
        lead = () if steps is None else (steps,)
        values = values.reshape(*lead, *(1,) * (len(step) - len(shape)), *shape).expand(*lead, *step)
    stride = count if len(kept) > 1 else math.prod(shape)
    return Parameter(given, values.contiguous(), stride, inner, count, shape, dimensions)


def on_device(device):
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
)";
}

std::string_view triton_training_runtime() {
  return R"(@triton.jit
def sum_kernel(
    from_ptr, to_ptr, columns, size, inner, blocks,
    COLUMNS: tl.constexpr, COUNT: tl.constexpr, LEVELS: tl.constexpr,
):
    # [outer, size, inner] to [outer, blocks, inner]: COUNT neighbours become one.
    program = tl.program_id(0).to(tl.int64)
    block = program % blocks
    column = program // blocks * COLUMNS + tl.arange(0, COLUMNS)
    row = block * COUNT + tl.arange(0, COUNT)
    outer = column // inner
    within = column % inner
    mask = (column < columns)[:, None] & (row < size)[None, :]
    place = (outer[:, None] * size + row[None, :]) * inner + within[:, None]
    values = tl.load(from_ptr + place, mask=mask, other=0.0)
    nothing = tl.full((), 0.0, values.dtype) * -1.0
    sums = flexsn_tree(tl.where(mask, values, nothing), COLUMNS, COUNT, LEVELS)
    tl.store(to_ptr + (outer * blocks + block) * inner + within, sums, mask=column < columns)


def sum_neighbours(values, outer, size, inner):
    """The middle dimension of [outer, size, inner] summed over neighbouring pairs, then pairs of these."""
    while size > 1:
        columns = min(64, triton.next_power_of_2(inner))
        count = max(SUM_SIZE // columns, 2)
        blocks = triton.cdiv(size, count)
        sums = torch.empty(outer * blocks * inner, dtype=values.dtype, device=values.device)
        sum_kernel[(triton.cdiv(outer * inner, columns) * blocks,)](
            values, sums, outer * inner, size, inner, blocks,
            columns, count, count.bit_length() - 1, enable_fp_fusion=False,
        )
        values, size = sums, blocks
    return values


def sum_gradient(values, rows, parameter):
    """Gradients of elements, or sums of programs where the parameter is one entry, as the parameter's own."""
    if parameter.count == 1:
        return sum_neighbours(values, rows, values.numel() // rows, 1)
    inner, left = 1, values.numel() // rows
    for size, kept in reversed(parameter.dimensions):
        if kept:
            inner *= size
            continue
        left //= size
        values = sum_neighbours(values, rows * (left // inner), size, inner)
    return values
)";
}

}  // namespace flexsn
