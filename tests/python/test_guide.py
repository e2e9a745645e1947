"""Pages of docs/ that show code: their Python runs, their commands print what is shown, their C++ is ours.

    ```python          runs, after all such blocks above it
    ```python no-run   is read by Python, and no more (another library's, or for another machine)
    ```python file=F   is the file F, which commands below it use; ```fsn file=F likewise
    ```sh              runs line by line: flexsn ... and python ...
    ```sh no-run       is not run
    ```text            right after a block that runs: what it prints; ... stands for anything
    ```cpp, ```cmake   is a part of the file that the comment above it names
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
from typing import NamedTuple

import pytest

SOURCES = pathlib.Path(__file__).parents[2]
PAGES = ("guide.md", "migrate.md", "internals.md")
BLOCK = re.compile(
    r"(?:^<!-- (?P<source>\S+) -->\n)?^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$(?P<after>\n*)", re.S | re.M
)


class Block(NamedTuple):
    info: list[str]
    text: str
    line: int
    source: str | None  #: the file that it is a part of
    shown: str | None  #: what it prints, where the page says so

    @property
    def kind(self) -> str:
        return " ".join(word for word in self.info if not word.startswith("file="))

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.info if word.startswith("file=")), None)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, each with the text block right after it."""
    text = (SOURCES / "docs" / page).read_text(encoding="utf-8")
    blocks: list[Block] = []
    end = -1
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("text"))
        if match["info"] == "text":
            assert match.start() == end, f"docs/{page}, line {line}: no block stands right before this text"
            blocks[-1] = blocks[-1]._replace(shown=match["text"])
        else:
            blocks.append(Block(match["info"].split(), match["text"], line, match["source"], None))
        end = match.end()
    return blocks


def program() -> pathlib.Path | None:
    """The command-line program of the build that the package's library is from."""
    built = os.environ.get("FLEXSN_LIBRARY") or SOURCES / "build" / "libflexsn_torch.so"
    path = pathlib.Path(built).parent / "flexsn"
    return path if path.is_file() else None


def run_command(line: str, may_fail: bool) -> str:
    import flexsn

    words = shlex.split(line, comments=True)
    executable = {"python": sys.executable, "flexsn": str(program())}[words[0]]
    paths = [str(pathlib.Path(flexsn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [executable, *words[1:]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert may_fail or done.returncode == 0, f"{line}\n{done.stdout}"
    return done.stdout


def require_shown(block: Block, printed: str, page: str) -> None:
    """What was printed is what the page shows; ... stands for anything."""
    wanted = block.shown.rstrip("\n")
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    assert re.fullmatch(pattern, printed.rstrip("\n"), re.S), (
        f"docs/{page}, line {block.line}: this prints\n{printed}\nand the page shows\n{wanted}"
    )


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_happens(
    page: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.file is not None:
            pathlib.Path(block.file).write_text(block.text, encoding="utf-8")
            continue
        if block.kind == "python":
            code = compile("\n" * block.line + block.text, page, "exec")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, space)
            result = printed.getvalue()
        elif block.kind == "sh" and program() is not None:
            may_fail = block.shown is not None  # an error may be what is shown
            result = "".join(run_command(line, may_fail) for line in block.text.splitlines() if line)
        else:
            continue
        if block.shown is not None:
            require_shown(block, result, page)
        else:
            assert block.kind == "sh" or not result, f"docs/{page}, line {block.line} prints:\n{result}"
    if program() is None and any(block.kind == "sh" for block in blocks_of(page)):
        pytest.skip("the command-line program is not built; the Python of the page did run")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_looked_at(page: str) -> None:
    blocks = blocks_of(page)
    assert any(block.kind in ("python", "sh") for block in blocks)
    for block in blocks:
        where = f"docs/{page}, line {block.line}"
        if block.kind in ("python", "python no-run"):
            compile(block.text, where, "exec")
        elif block.kind in ("cpp", "cmake"):
            assert block.source is not None, f"{where} names no file that it is a part of"
        else:
            assert block.kind in ("sh", "sh no-run", "fsn"), f"{where} is of kind {block.kind!r}"
        assert block.shown is None or block.kind in ("python", "sh"), f"{where} does not run"


@pytest.mark.parametrize("page", PAGES)
def test_cpp_of_a_page_is_a_part_of_its_file(page: str) -> None:
    for block in blocks_of(page):
        if block.source is None:
            continue
        lines = (SOURCES / block.source).read_text(encoding="utf-8").splitlines()
        wanted = textwrap.dedent(block.text).splitlines()
        assert any(
            textwrap.dedent("\n".join(lines[first : first + len(wanted)])).splitlines() == wanted
            for first in range(len(lines))
        ), f"docs/{page}, line {block.line} is no part of {block.source}"


def headings(path: pathlib.Path) -> set[str]:
    """What a link to a heading of a page may be called after its #."""
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}


@pytest.mark.parametrize("page", [*PAGES, "fsn.md", "scope.md", "neurons.md", "../README.md"])
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    path = SOURCES / "docs" / page
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for file, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose):
        leads_to = path.parent / file if file else path
        assert leads_to.exists(), file
        assert not heading or heading in headings(leads_to), f"{file}#{heading}"


def test_the_comparison_sees_a_difference() -> None:
    block = Block(["sh"], "flexsn\n", 1, None, "a ... c\nd\n")
    require_shown(block, "a b\nb c\nd\n", "guide.md")
    with pytest.raises(AssertionError, match="and the page shows"):
        require_shown(block, "a b c\ne\n", "guide.md")
