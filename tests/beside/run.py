"""usage: run.py LIBRARY   Loads flexsn beside packages that carry an LLVM of their own; all must work.

Every case is a process of its own. What a package gives beside flexsn must be what it gives alone. A package
that is missing or does not work alone is left out by name; with none left the exit status is 77.
"""

import concurrent.futures
import ctypes
import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

# ---- each function loads a library and gives a function that uses it, with other work in every turn -----


def load_flexsn(library):
    handle = ctypes.CDLL(library, mode=sys.getdlopenflags())

    def use(turn):
        if handle.flexsn_beside(turn) != 0:
            raise RuntimeError("flexsn does not give the interpreter's bits")

    return use


def load_triton():
    global tl  # a kernel sees the names of its module
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def kernel(x, y, count, scale: tl.constexpr):
        n = tl.program_id(0) * 128 + tl.arange(0, 128)
        tl.store(y + n, tl.exp(tl.load(x + n, mask=n < count)) * scale, mask=n < count)

    def use(turn):
        types = {"x": "*fp32", "y": "*fp32", "count": "i32", "scale": "constexpr"}
        source = ASTSource(kernel, signature=types, constexprs={"scale": turn + 2})
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TRITON_CACHE_DIR"] = cache
            try:
                triton.compile(source, target=GPUTarget("cuda", 90, 32))
            except Exception:
                # LLVM's work ends with PTX; the assembler that comes after it may be missing.
                if not list(pathlib.Path(cache).rglob("*.ptx")):
                    raise
            (ptx,) = pathlib.Path(cache).rglob("*.ptx")
            return hashlib.sha256(ptx.read_bytes()).hexdigest()

    return use


def load_torch():
    import torch

    def use(turn):
        x = torch.linspace(-3, 3, 1000, requires_grad=True)
        torch.tanh(x * (turn + 1)).cumsum(0).mean().backward()
        return hashlib.sha256(str(x.grad.tolist()).encode()).hexdigest()

    return use


PACKAGES = {"triton": load_triton, "torch": load_torch}
ORDERS = ["ours first", "theirs first", "ours loaded first", "theirs loaded first", "at once"]

# ---- one case, in a process of its own ------------------------------------------------------------------


def run_case(library, order, symbols, names):
    """Prints what the packages gave, turn by turn."""
    if symbols == "global":  # a library then gets what it imports, or shows itself, from the one loaded first
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)

    def load_ours():
        return load_flexsn(library) if order != "alone" else lambda turn: None

    def load_theirs():
        return {name: PACKAGES[name]() for name in names}

    def use_theirs(turn):
        for name, use in theirs.items():
            print(f"{name} turn {turn}: {use(turn)}")

    if order in ("ours first", "ours loaded first"):
        ours = load_ours()
        if order == "ours first":
            ours(0)
        theirs = load_theirs()
    else:
        theirs = load_theirs()
        if order == "theirs first":
            for use in theirs.values():
                use(0)
        ours = load_ours()

    for turn in range(1, 3):
        if order == "at once":
            with concurrent.futures.ThreadPoolExecutor() as pool:
                running = [pool.submit(ours, 10 * turn + n) for n in range(10)]
                use_theirs(turn)
            for one in running:
                one.result()
        else:
            ours(turn)
            use_theirs(turn)


# ---- all cases --------------------------------------------------------------------------------------------


def start(*case):
    # A kernel from disk would need no LLVM.
    environment = dict(os.environ, FLEXSN_CACHE="0")
    command = [sys.executable, __file__, *case]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def works_alone(library, name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        print(f"left out: flexsn beside {name} (the Python package is not installed)")
        return False
    result = start(library, "alone", "local", name)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        reason = f"it does not work alone: status {result.returncode}, {reason}"
        print(f"left out: flexsn beside {name} ({reason})")
    return result.returncode == 0


def run_all(library):
    names = list(PACKAGES)
    alone = start(library, "alone", "local", *names)
    if alone.returncode != 0:
        names = [name for name in PACKAGES if works_alone(library, name)]
    if not names:
        return 77
    title = "flexsn beside " + " and ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    status = 0
    for symbols in ("local", "global"):
        if symbols == "global" or names != list(PACKAGES):
            alone = start(library, "alone", symbols, *names)
        if alone.returncode != 0:
            print(f"left out: {title}, {symbols} symbols (they do not work without flexsn)")
            continue
        for order in ORDERS:
            result = start(library, order, symbols, *names)
            if result.returncode == 0 and result.stdout == alone.stdout:
                print(f"{title}, {symbols} symbols, {order}: all work")
                continue
            status = 1
            print(f"{title}, {symbols} symbols, {order}: FAILED with status {result.returncode}")
            print(f"{result.stdout}{result.stderr}without flexsn:\n{alone.stdout}")
    return status


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(run_all(sys.argv[1]))
    run_case(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
