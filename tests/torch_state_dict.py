"""The Python half of the test that state dicts pass between Python and C++: `write` or `check` in a folder."""

import pathlib
import sys

try:
    import torch
    from torch import nn

    import flexsn
except ImportError as error:
    print(error)
    sys.exit(77)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 0).to(u)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * u) ** 2)


class Core(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.rate = nn.Parameter(torch.full((channels,), 0.5))
        self.register_buffer("threshold", torch.tensor(0.75))

    def forward(self, x, v):
        h = v + (x - v) * self.rate
        s = Spike.apply(h - self.threshold)
        return s, h * (1 - s)


def network():
    return nn.Sequential(
        nn.Linear(6, 16),
        flexsn.FlexSN(Core(16), num_states=1),
        nn.Linear(16, 4),
        flexsn.FlexSN(Core(4), num_states=1),
    )


def write(folder):
    torch.manual_seed(3)
    net, x = network(), 3 * torch.randn(12, 5, 6)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        flexsn.functional.reset_net(net)
        optimizer.zero_grad()
        (net(x).mean(0) - 0.5).square().sum().backward()
        optimizer.step()
    assert not torch.equal(net[1].core.rate, torch.full((16,), 0.5))
    flexsn.functional.reset_net(net)
    with torch.no_grad():
        y = net(x)
    assert 0 < y.mean() < 1
    torch.save(net.state_dict(), folder / "python.pt")
    torch.save({"x": x, "y": y, "v": net[3].states[0]}, folder / "python_run.pt")
    torch.save({"net": net.state_dict()}, folder / "nested.pt")
    torch.save({"epoch": 3}, folder / "numbers.pt")
    many = nn.ParameterList([nn.Parameter(torch.tensor(float(i))) for i in range(1500)])
    torch.save(many.state_dict(), folder / "many.pt")  # numbers that take more than a byte


def check(folder):
    net, run = network(), torch.load(folder / "cpp_run.pt")
    net.load_state_dict(torch.load(folder / "cpp.pt"))
    with torch.no_grad():
        y = net(run["x"])
    assert torch.equal(y, run["y"])
    assert torch.equal(net[3].states[0], run["v"])


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
