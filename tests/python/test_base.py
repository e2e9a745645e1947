"""Memories and step modes of modules: register, reset, detach, move, copy, explicit states."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn

from flexsn import base


class Counter(base.MemoryModule):
    """Adds its inputs up."""

    def __init__(self, start: object = 0.0) -> None:
        super().__init__()
        self.register_memory("total", start)

    def single_step_forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x
        return self.total


class Keeper(base.MemoryModule):
    """Has one memory named `kept`."""

    def __init__(self, kept: object) -> None:
        super().__init__()
        self.register_memory("kept", kept)


Pair = namedtuple("Pair", "left right")


# ---- register, read, write ---------------------------------------------------------------------------------


def test_a_memory_is_read_and_written_as_an_attribute():
    module = Keeper(1)
    module.kept = 2
    assert module.kept == 2
    assert dict(module.named_memories()) == {"kept": 2}
    assert list(module.memories()) == [2]
    assert "kept" not in module.__dict__


def test_a_memory_may_not_take_the_name_of_an_attribute():
    module = Keeper(1)
    with pytest.raises(AssertionError, match="memory 'kept', an attribute has that name"):
        module.register_memory("kept", 3)
    with pytest.raises(AssertionError, match="'forward'"):
        module.register_memory("forward", 3)


def test_a_memory_can_be_deleted():
    module = Keeper(1)
    del module.kept
    assert not hasattr(module, "kept")
    module.register_memory("kept", 5)
    assert module.kept == 5


def test_dir_lists_memories():
    assert "kept" in dir(Keeper(1))


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        Keeper(1).missing


def test_memories_are_no_part_of_the_state_dict():
    assert list(Keeper(torch.ones(2)).state_dict()) == []


# ---- reset -------------------------------------------------------------------------------------------------


def test_reset_writes_a_tensor_in_place_where_shape_type_and_device_agree():
    module = Keeper(torch.zeros(3))
    current = torch.ones(3, requires_grad=True) * 2
    module.kept = current
    module.reset()
    assert module.kept is current
    assert current.grad_fn is None
    assert current.tolist() == [0, 0, 0]


def test_reset_of_a_view_makes_a_new_tensor():
    module = Keeper(torch.zeros(3))
    whole = torch.ones(2, 3)
    module.kept = whole[0]
    module.reset()
    assert module.kept.tolist() == [0, 0, 0]
    assert whole.sum() == 6


def test_reset_of_a_tensor_from_inference_mode_makes_a_new_tensor():
    module = Keeper(torch.zeros(3))
    with torch.inference_mode():
        module.kept = torch.ones(3)
    module.reset()
    assert module.kept.tolist() == [0, 0, 0]
    assert not module.kept.is_inference()


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(3, dtype=torch.float64), None, 7])
def test_reset_of_another_shape_type_or_kind_copies_the_reset_value(other):
    module = Keeper(torch.zeros(3))
    module.kept = other
    module.reset()
    assert torch.equal(module.kept, torch.zeros(3))
    module.kept.add_(1)
    assert torch.equal(module.get_reset_value("kept"), torch.zeros(3))


def test_reset_puts_a_number_back_in_place_of_a_tensor():
    module = Counter(0.5)
    module(torch.ones(2))
    assert isinstance(module.total, Tensor)
    module.reset()
    assert module.total == 0.5 and isinstance(module.total, float)


def test_reset_copies_a_list():
    module = Keeper([torch.zeros(2)])
    module.kept = [torch.ones(2)]
    module.reset()
    assert torch.equal(module.kept[0], torch.zeros(2))
    module.kept[0].add_(1)
    module.reset()
    assert torch.equal(module.kept[0], torch.zeros(2))


def test_the_reset_value_is_a_copy_and_can_be_changed():
    start = torch.zeros(2)
    module = Keeper(start)
    start.add_(1)
    assert torch.equal(module.get_reset_value("kept"), torch.zeros(2))
    module.set_reset_value("kept", torch.full((2,), 3.0))
    module.reset()
    assert module.kept.tolist() == [3, 3]


def test_the_reset_value_of_a_tensor_with_a_graph_has_none():
    module = Keeper(None)
    module.set_reset_value("kept", [torch.ones(2, requires_grad=True) * 2])
    assert module.get_reset_value("kept")[0].grad_fn is None


def test_the_reset_value_of_an_unknown_memory_is_a_key_error():
    with pytest.raises(KeyError, match=r"no memory 'missing'; it has \['kept'\]"):
        Keeper(1).get_reset_value("missing")


# ---- detach, move ------------------------------------------------------------------------------------------


def with_graph() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize(
    "make, tensors_of",
    [
        (with_graph, lambda kept: [kept]),
        (lambda: [with_graph(), with_graph()], lambda kept: kept),
        (lambda: (with_graph(),), lambda kept: kept),
        (lambda: {"a": [with_graph()]}, lambda kept: kept["a"]),
        (lambda: Pair(with_graph(), 1), lambda kept: [kept.left]),
    ],
    ids=["tensor", "list", "tuple", "dict", "named tuple"],
)
def test_detach_and_to_reach_tensors_wherever_they_are(make, tensors_of):
    module = Keeper(None)
    module.kept = make()
    kind = type(module.kept)
    module.detach()
    assert type(module.kept) is kind
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in tensors_of(module.kept))
    module.to(torch.float64)
    assert type(module.kept) is kind
    assert all(tensor.dtype == torch.float64 for tensor in tensors_of(module.kept))


def test_detach_leaves_the_tensor_of_others_in_its_graph():
    module = Keeper(None)
    output = with_graph()
    module.kept = [output]
    module.detach()
    assert output.grad_fn is not None


def test_detach_works_on_views():
    module = Keeper(None)
    module.kept = with_graph()[0]
    module.detach()
    assert module.kept.grad_fn is None


def test_to_moves_reset_values_too():
    module = Keeper([torch.zeros(2)])
    module.half().reset()
    assert module.kept[0].dtype == torch.float16


def test_to_moves_across_devices():
    module = Keeper([torch.zeros(2)])
    module.to("meta")
    assert module.kept[0].device.type == "meta"


def test_to_leaves_integers_their_type():
    module = Keeper([torch.zeros(2, dtype=torch.int32)])
    assert module.double().kept[0].dtype == torch.int32


# ---- step mode, backend, running ---------------------------------------------------------------------------


def test_step_mode_is_one_of_s_and_m():
    module = Counter()
    assert module.step_mode == "s" and module.supported_step_mode() == ("s", "m")
    module.step_mode = "m"
    with pytest.raises(ValueError, match=r"Counter: step_mode must be one of \('s', 'm'\), found 'x'"):
        module.step_mode = "x"
    assert module.step_mode == "m"


def test_backend_is_one_of_the_supported():
    module = Counter()
    assert module.backend == "torch" and module.supported_backends == ("torch",)
    with pytest.raises(NotImplementedError, match="backend must be one of .*found 'cupy'"):
        module.backend = "cupy"


def test_forward_runs_one_step_or_stacks_a_sequence():
    x = torch.arange(6.0).reshape(3, 2)
    single, multi = Counter(), Counter()
    multi.step_mode = "m"
    steps = torch.stack([single(x[t]) for t in range(3)])
    assert torch.equal(multi(x), steps)
    assert torch.equal(multi.total, x.sum(0))


def test_a_module_without_single_step_forward_says_so():
    with pytest.raises(NotImplementedError, match="Keeper does not define single_step_forward"):
        Keeper(1)(torch.ones(1))


def test_a_step_module_needs_no_memories():
    class Doubler(base.StepModule, nn.Module):
        pass

    module = Doubler()
    module.step_mode = "m"
    assert module.step_mode == "m"


def test_extra_repr_names_step_mode_and_backend():
    assert repr(Counter()) == "Counter(step_mode=s, backend=torch)"


# ---- copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_memories_of_its_own_without_the_graph(copied):
    module = Keeper([torch.zeros(2)])
    module.kept = [with_graph()]
    twin = copied(module)
    assert torch.equal(twin.kept[0], module.kept[0])
    assert twin.kept[0].grad_fn is None and module.kept[0].grad_fn is not None
    twin.kept[0].add_(1)
    assert module.kept[0].tolist() == [2, 2]
    twin.reset()
    assert twin.kept[0].tolist() == [0, 0] and module.kept[0].tolist() == [2, 2]


def test_a_leaf_that_wants_a_gradient_still_does_in_a_copy():
    module = Keeper(None)
    module.kept = [torch.zeros(2, requires_grad=True)]
    assert copy.deepcopy(module).kept[0].requires_grad


def test_a_data_parallel_replica_has_its_own_table_of_memories():
    module = Keeper([torch.zeros(2)])
    shared = module.kept
    replica = module._replicate_for_data_parallel()
    assert replica.kept is shared
    replica.kept = None
    assert module.kept is shared


# ---- memories of a network ---------------------------------------------------------------------------------


class Logged(Counter):
    """Counts its calls in a memory that is no state."""

    memory_caches = ("log",)

    def __init__(self) -> None:
        super().__init__()
        self.register_memory("log", None)

    def single_step_forward(self, x: Tensor) -> Tensor:
        self.log = "ran"
        return super().single_step_forward(x)


def network() -> nn.Sequential:
    return nn.Sequential(Counter(1.0), nn.Sequential(nn.Identity(), Logged()))


def test_memories_of_a_network_have_names():
    assert list(base.named_memories(network())) == [("0.total", 1.0), ("1.1.total", 0.0), ("1.1.log", None)]
    assert list(base.named_memories(Counter(2.0), prefix="net")) == [("net.total", 2.0)]
    assert list(base.memories(network())) == [1.0, 0.0, None]


def test_extract_and_load_carry_the_state_of_a_network():
    net = network()
    assert base.extract_memories(net) == [1.0, 0.0]
    base.load_memories(net, [5.0, 6.0])
    assert net[0].total == 5.0 and net[1][1].total == 6.0


def test_load_of_another_number_of_memories_is_an_error():
    with pytest.raises(ValueError, match="Sequential has 2 memories to load, found 1 values"):
        base.load_memories(network(), [1.0])


def test_a_module_that_is_used_twice_has_its_memories_once():
    shared = Counter(3.0)
    assert base.extract_memories(nn.Sequential(shared, shared)) == [3.0]


def test_a_functional_network_leaves_its_memories_alone():
    net = network()
    functional = base.to_functional_forward(net)
    x = torch.ones(2)
    outputs, states = functional((x,), (10.0, 20.0))
    assert outputs[0].tolist() == [31, 31]
    assert [state.tolist() for state in states] == [[11, 11], [31, 31]]
    assert base.extract_memories(net) == [1.0, 0.0] and net[1][1].log is None


def test_a_functional_network_is_left_alone_after_an_error():
    class Failing(Counter):
        def single_step_forward(self, x: Tensor) -> Tensor:
            super().single_step_forward(x)
            raise RuntimeError("on purpose")

    net = nn.Sequential(Failing(4.0))
    with pytest.raises(RuntimeError, match="on purpose"):
        base.to_functional_forward(net)((torch.ones(1),), (9.0,))
    assert net[0].total == 4.0


def test_a_functional_module_equals_the_module():
    module = Counter(1.0)
    outputs, states = base.to_functional_forward(module)((torch.ones(2),), (1.0,))
    assert module.total == 1.0
    assert torch.equal(module(torch.ones(2)), outputs[0])
    assert torch.equal(module.total, states[0])


def test_a_functional_call_may_use_another_forward():
    module = Counter(1.0)
    functional = base.to_functional_forward(module, lambda x, scale: module(x) * scale)
    outputs, _ = functional((torch.ones(2),), (1.0,), scale=10)
    assert outputs[0].tolist() == [20, 20]
    assert module.total == 1.0


def test_a_functional_call_with_another_number_of_states_is_an_error():
    with pytest.raises(ValueError, match="2 memories to load, found 3"):
        base.to_functional_forward(network())((torch.ones(1),), (1.0, 2.0, 3.0))


def test_a_compiled_network_has_each_memory_once():
    compiled = torch.compile(network(), backend="eager")
    assert base.extract_memories(compiled) == [1.0, 0.0]
