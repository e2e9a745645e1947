"""One table of what the benchmarks of this machine found: flexsn beside each alternative of the same run."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

from flexsn.bench import side_by_side

LABELS = {
    "flexsn": "flexsn",
    "eager": "eager",
    "compile": "torch.compile",
    "spikingjelly": "SpikingJelly",
    "plain": "plain C++ loop",
}
PLAIN = "plain loop"
#: what flexsn is called in rows of the C++ benchmark that have a plain loop, and what that says of the work
OURS = {"flexsn": "", "triangle": ", triangle surrogate"}

Rows = dict[str, dict[str, float]]


def torch_rows(record: dict[str, Any]) -> Rows:
    """Milliseconds from bench/torch_bench.py: calls from Python, torch.compile in rows of its own."""
    return {
        f"LIF {case['kind']}, {case['T']} x {case['N']}, from Python{', compiled' * ('compile' in case['ms'])}": {
            LABELS[name]: time for name, time in case["ms"].items() if name in LABELS
        }
        for case in record["cases"]
    }


def cpp_rows(record: dict[str, Any]) -> Rows:
    """Milliseconds from flexsn_cpu_bench: calls from C++ beside plain loops, the fastest of each row."""
    rows: Rows = {}
    for row in record["rows"]:
        medians = {name: spread["median"] * 1e3 for name, spread in row["seconds"].items()}
        plain = [time for name, time in medians.items() if name.startswith(PLAIN)]
        ours = [name for name in OURS if name in medians]
        if not plain or not ours:
            continue
        neuron, _, rest = row["work"].partition(" ")
        work, size = rest.split(", ")[:2]
        if size.startswith("T = "):
            size = f"{size.removeprefix('T = ')} x {rest.split(', ')[2].removeprefix('N = ')}"
        name = f"{neuron.upper()} {work}, {size}{OURS[ours[0]]}, from C++"
        rows[name] = {LABELS["flexsn"]: medians[ours[0]], LABELS["plain"]: min(plain)}
    return rows


def draw(rows: Rows, path: pathlib.Path) -> str:
    """What was drawn, or why nothing was."""
    try:
        from matplotlib.figure import Figure

        from flexsn.plot import bench_bars
    except ImportError as error:
        return f"no picture: {error}"
    figure = Figure(figsize=(9, 1 + 0.9 * len(rows)), layout="constrained")
    bench_bars(rows, ax=figure.subplots(), log=True)
    figure.savefig(path, dpi=150)
    return f"drew {path}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", metavar="FILE.json", help="what bench/torch_bench.py wrote")
    parser.add_argument("--cpp", metavar="FILE.json", help="what flexsn_cpu_bench wrote")
    parser.add_argument("--out", metavar="FILE.json", help="write all of it there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the table there")
    options = parser.parse_args()
    rows: Rows = {}
    records = {}
    for name, path, read in (("torch", options.torch, torch_rows), ("cpp", options.cpp, cpp_rows)):
        if path is None or not pathlib.Path(path).is_file():
            print(f"left out: the figures of {name}, as there is no {path or 'file'}")
            continue
        records[name] = json.loads(pathlib.Path(path).read_text())
        rows |= read(records[name])
    if not rows:
        print("bench/table.py: there are no figures; run make bench", file=sys.stderr)
        return 1
    found = {label for row in rows.values() for label in row}
    print(side_by_side(rows, [label for label in LABELS.values() if label in found]))
    print("medians; x: times as long as flexsn in the same run")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps({"milliseconds": rows, **records}, indent=1) + "\n")
        print(f"wrote {options.out}")
    if options.plot:
        print(draw(rows, pathlib.Path(options.plot)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
