"""The rules of the repository: roots, floors, clocks, tasks, documents."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lockstep.runtime.extras import VERSION

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {"protocol": 0, "runtime": 1, "broker": 2, "nameserver": 2, "client": 2, "operations": 3}
FLOORS |= {"cli": 4, "dashboard": 4, "testing": 4, "spark": 4, "otel": 4, "taskiq": 4, "tests": 5}
"""`tests/sweep` is checked like a root."""
BESIDE = ["spark/pyspark_lockstep"]
"""Packages of the wheel outside of the namespace: Spark looks for modules of this name."""
PURE_FORBIDDEN = {"asyncio", "socket", "time", "random", "os", "logging", "threading", "structlog", "uvloop", "secrets", "uuid"}
WORLD = {f"runtime/lockstep/runtime/{name}.py" for name in ("clock", "host", "files", "descriptors", "loop_thread")}
"""The only product files that use clocks, randomness, files and threads directly."""
WORLD_MODULES = {"time", "random", "threading", "uuid", "secrets", "tempfile", "shutil"}
WORLD_CALLS = re.compile(
    r"\bdatetime\.now|\bos\.(urandom|open|rename|replace|remove|unlink|mkdir|makedirs|fsync|fdatasync|pwrite|pread|stat|listdir|scandir)\("
    r"|\basyncio\.to_thread|\brun_in_executor|(?<![\w.])(?<!def )open\(|\.(read|write)_(text|bytes)\("
)


def roots() -> list[str]:
    return sorted(path.parents[1].name for path in ROOT.glob("*/lockstep/*") if path.is_dir() and path.name != "__pycache__")


def tracked_files() -> list[str]:
    """Return the files of the repository, those that git does not know yet included; of a copy without git all of them."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return listing.stdout.splitlines() if listing.returncode == 0 else [place(path) for path in ROOT.rglob("*") if path.is_file()]


@cache
def sources() -> tuple[Path, ...]:
    folders = [*(ROOT / root / "lockstep" for root in roots()), ROOT / "tests/sweep"]
    return tuple(path for folder in folders for path in sorted(folder.rglob("*.py")))


@cache
def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def simulates(path: Path) -> bool:
    """Return whether the file belongs to the simulator or to the sweep."""
    return place(path).startswith(("testing/", "tests/"))


@cache
def read(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(read(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file, which is read, parsed and walked once for all rules."""
    return tuple(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def _forget_the_nodes() -> Iterator[None]:
    """The nodes of all files are a million objects, which the garbage collector would look at in each later test."""
    yield
    nodes.cache_clear()
    tree.cache_clear()


@cache
def imported(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return tuple(found)


def test_pyproject_lists_exactly_the_roots_on_disk() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hatch = project["tool"]["hatch"]["build"]
    assert sorted(hatch["targets"]["wheel"]["packages"]) == sorted([f"{root}/lockstep" for root in roots()] + BESIDE)
    assert sorted(hatch["dev-mode-dirs"]) == roots()
    assert project["project"]["version"] == VERSION
    assert sorted(set(project["tool"]["pytest"]["ini_options"]["pythonpath"]) - {"tests", "bench"}) == roots()


def listed(page: str, heading: str) -> dict[str, str]:
    """Return the folders in the first table after `heading`, each with the cell before it, or "" if it is in the first column."""
    table = (ROOT / page).read_text().partition(heading)[2].partition("\n\n|")[2].partition("\n\n")[0]
    return {folder: floor for floor, folder in re.findall(r"^\|?(?: (\d) \|)? `([\w.]+)` \|", table, re.MULTILINE)}


def test_pages_list_exactly_the_roots_and_folders_on_disk() -> None:
    floors = {root: str(floor) for root, floor in FLOORS.items() if root != "tests"}
    assert listed("docs/architecture.md", "## Floors") == floors
    assert listed("CONTRIBUTING.md", "## Layout") == floors
    assert sorted(floors) == roots()
    tracked = {path.parts[0] for path in map(Path, tracked_files()) if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    assert set(listed("docs/architecture.md", "Beside the roots")) == tracked - floors.keys()


ENTRIES_MAX = 25


def test_folders_are_small_enough_to_read_their_list_and_say_what_belongs_there() -> None:
    folders = {path.parent for path in sources() if path.parent.parent.name != "lockstep" or path.parent.name in roots()}
    for folder in sorted(folder for folder in folders if not place(folder).startswith("tests/")):
        entries = [each.name for each in folder.iterdir() if each.name not in ("__pycache__", "__init__.py", "py.typed")]
        assert len(entries) <= ENTRIES_MAX, f"{place(folder)} has {len(entries)} entries: divide it by subject"
        assert ast.get_docstring(tree(folder / "__init__.py")), f"{place(folder)}/__init__.py does not say what belongs there"


BLOCKING = "lockstep.client.sync has the blocking form"
NAMESAKES = {
    "Producer": BLOCKING,
    "ProducerArguments": "the arguments of each",
    "Transaction": BLOCKING,
    "TransactionProducer": BLOCKING,
}
"""Names of two things, and why."""


def named(path: Path) -> Iterator[str]:
    """Yield the public classes and type aliases of a file."""
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and "TypeVar" not in ast.unparse(node.value):
            name = node.targets[0].id
        else:
            continue
        if re.match("[A-Z].*[a-z]", name):
            yield name


def test_classes_and_types_have_names_of_their_own() -> None:
    files: dict[str, list[str]] = {}
    for path in sources():
        if not place(path).startswith("tests/"):
            for name in named(path):
                files.setdefault(name, []).append(place(path))
    shared = {name: where for name, where in files.items() if len(where) > 1}
    assert shared.keys() == NAMESAKES.keys(), shared


def test_every_root_is_one_typed_part_of_the_namespace_package() -> None:
    assert not list(ROOT.glob("*/lockstep/__init__.py")), "an __init__.py in lockstep/ breaks the namespace package"
    for root in roots():
        assert (ROOT / root / "lockstep" / root / "py.typed").exists(), root


def test_file_imports_only_from_lower_floors() -> None:
    for path in sources():
        here = path.relative_to(ROOT).parts[0]
        for name in imported(path):
            assert here == "tests" or name.partition(".")[0] not in {"sweep", "support"}, f"{place(path)} imports {name}"
            if name.startswith("lockstep."):
                there = name.split(".")[1]
                assert there == here or FLOORS[there] < FLOORS[here], f"{place(path)} imports {name}"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in sources()}


def needed(path: Path) -> set[str]:
    """Return which modules of the repository the file imports, and the packages whose `__init__` that runs: those around
    a module, except its own."""
    found = set(imported(path))
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names
            if names <= modules().keys():
                found.discard(node.module)
    around = {".".join(parts[:count]) for parts in (name.split(".") for name in found & modules().keys()) for count in range(1, len(parts))}
    return (found | {package for package in around if not f"{module_of(path)}.".startswith(f"{package}.")}) & modules().keys()


def test_imports_have_no_cycle() -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    needs = {name: needed(path) - {name} for name, path in modules().items()}
    assert len(needs["lockstep.broker.app"]) > 10, "imports are found"
    while free := {name for name, below in needs.items() if not below & needs.keys()}:
        needs = {name: below for name, below in needs.items() if name not in free}
    assert not needs, f"these import each other: {', '.join(sorted(needs))}"


LATE = {
    "runtime/lockstep/runtime/metrics.py": "a process without an admin port does not load prometheus_client",
    "client/lockstep/client/__init__.py": "a command or a producer does not load the consumers",
    "runtime/lockstep/runtime/host.py": "a client does not load fcntl, which some systems lack",
    "spark/lockstep/spark/__init__.py": "the package can be imported without pyspark",
    "spark/lockstep/spark/report.py": "the page can be written without pyspark",
}
"""Files of the product that import types only for the type checker, and why."""


def test_type_checking_imports_are_few_and_have_a_reason() -> None:
    assert {place(p) for p in sources() if not simulates(p) and "TYPE_CHECKING" in p.read_text()} == LATE.keys()


def test_protocol_is_pure() -> None:
    for path in [path for path in sources() if place(path).startswith("protocol/")]:
        assert not PURE_FORBIDDEN & {name.split(".")[0] for name in imported(path)}, place(path)


def test_tables_are_pure() -> None:
    for path in [path for path in sources() if "/tables/" in place(path) or place(path).endswith(("coordination.py", "route_table.py"))]:
        assert not (PURE_FORBIDDEN - {"os"}) & {name.split(".")[0] for name in imported(path)}, place(path)


def test_clocks_randomness_files_and_threads_are_injected() -> None:
    for path in [path for path in sources() if place(path) not in WORLD and not place(path).startswith("cli/")]:
        seeded = {"random"} if simulates(path) else set()
        assert not WORLD_MODULES & {name.split(".")[0] for name in imported(path)} - seeded, place(path)
        for number, line in enumerate(read(path).splitlines(), 1):
            code = line.split("#")[0]
            found = WORLD_CALLS.search(code)
            assert not found or "# world:" in line, f"{place(path)}:{number} reaches the world by itself: {line.strip()}"


def test_simulator_uses_only_seeded_randomness() -> None:
    for path in [path for path in sources() if simulates(path)]:
        for node in nodes(path):
            assert not isinstance(node, ast.Import) or all(alias.name != "random" for alias in node.names), f"{place(path)} imports random"
            if isinstance(node, ast.ImportFrom) and node.module == "random":
                assert [alias.name for alias in node.names] == ["Random"], f"{place(path)} imports more than Random"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Random":
                assert node.args, f"{place(path)}:{node.lineno} has dice without a seed"


def test_every_task_has_an_owner() -> None:
    for path in sources():
        if place(path) == "runtime/lockstep/runtime/daemon.py":
            continue
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in {"create_task", "ensure_future"}:
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                assert owner in {"group", "tasks"}, f"{place(path)}:{node.lineno} starts a task that nobody owns"


def test_broad_except_is_used_only_where_an_error_ends_one_unit() -> None:
    for path in sources():
        if path.name in {"daemon.py", "turn.py"}:
            continue
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler):
                names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"(bare)"}
                ends_one_request = len(node.body) == 1 and ast.unparse(node.body[0]).endswith("request.fail(error)")
                if names & {"Exception", "BaseException", "(bare)"} and not ends_one_request:
                    line = read(path).splitlines()[node.lineno - 1]
                    assert re.search("# (listener|one message|one table|notices):|# re-raised", line), (
                        f"{place(path)}:{node.lineno} catches everything"
                    )


def _text_of_a_name(node: ast.AST) -> str:
    """Return the name whose text an expression takes: `str(name)`, `repr(name)`, `f"{name}"`; or nothing."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"str", "repr"}:
        node = node.args[0] if node.args else node
    elif isinstance(node, ast.FormattedValue):
        node = node.value
    else:
        return ""
    return node.id if isinstance(node, ast.Name) else ""


def test_text_of_an_error_of_any_type_is_made_in_one_place() -> None:
    """What users' code raises may have a text that raises: `text_of` (protocol/object_text.py)."""
    for path in sources():
        if place(path).partition("/")[0] not in {"client", "otel", "protocol", "runtime", "taskiq"} or path.name == "object_text.py":
            continue
        for handler in nodes(path):
            if not isinstance(handler, ast.ExceptHandler) or handler.type is None or handler.name is None:
                continue
            if {name.id for name in ast.walk(handler.type) if isinstance(name, ast.Name)} & {"Exception", "BaseException"}:
                shown = {_text_of_a_name(node) for node in ast.walk(handler)}
                assert handler.name not in shown, f"{place(path)}:{handler.lineno} shows an error without text_of"


def test_no_todo_is_left() -> None:
    for path in sources():
        for number, line in enumerate(read(path).splitlines(), 1):
            assert not re.search(r"\b(TODO|FIXME|XXX)\b", line), f"{place(path)}:{number}"


# ------------------------------------------------------------------------------------------------------------------ citations


TEXT_FOLDERS = ("bench", "docs", "examples", "scripts", "tests")
INTERNAL_PAGES = ("architecture.md", "ordering.md", "store.md", "invariants.md", "wire.md", "CONTRIBUTING.md")
"""Pages about the code: a bare file name there is one of ours. In others `billing.py` may be the reader's."""
LAW = r"[BCDELNOPQRSTX]\d{1,2}[a-c]?"
NOT_LAWS = {"tests/unit/protocol/test_golden.py"}
"""Files whose comments contain many hexadecimal digits."""


def texts() -> list[Path]:
    """Return the files that may cite a page, a rule or a law."""
    folders = [ROOT / root for root in roots()] + [ROOT / folder for folder in TEXT_FOLDERS]
    found = [path for folder in folders for pattern in ("*.py", "*.md") for path in sorted(folder.rglob(pattern))]
    return found + sorted(ROOT.glob("*.md"))


def pages() -> list[Path]:
    """Return the documents except the change log, which names old files."""
    return [path for path in texts() if path.suffix == ".md" and path.name != "CHANGELOG.md"]


@cache
def file_names() -> frozenset[str]:
    """Return every suffix, at a slash, of the path of a file: `store/store.py` for `broker/lockstep/broker/store/store.py`."""
    names = set()
    folders = [ROOT / root for root in roots()] + [ROOT / folder for folder in TEXT_FOLDERS] + [ROOT / ".github"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()] + [
        path for path in ROOT.iterdir() if path.is_file()
    ]
    for path in files:
        parts = place(path).split("/")
        short = [parts[0], *parts[3:]] if parts[1:2] == ["lockstep"] else parts  # broker/app.py
        for each in (parts, short):
            names |= {"/".join(each[begin:]) for begin in range(len(each))}
    return frozenset(names)


@cache
def laws() -> frozenset[str]:
    """Return the laws of docs/invariants.md."""
    return frozenset(re.findall(rf"^\*\*({LAW})\*\* ", (ROOT / "docs" / "invariants.md").read_text(), re.MULTILINE))


@cache
def rules() -> frozenset[str]:
    """Return the sections and rules of docs/ordering.md."""
    return frozenset(re.findall(r"^###? (\d+(?:\.\d+)?)\.? ", (ROOT / "docs" / "ordering.md").read_text(), re.MULTILINE))


def prose(path: Path) -> str:
    """Return the text of a document, or the docstrings and comments of a module."""
    text = read(path)
    if path.suffix != ".py":
        return text
    strings = [node.value.value for node in nodes(path) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    comments = [line.split("#", 1)[1] for line in text.splitlines() if "#" in line]
    return "\n".join([*(value for value in strings if isinstance(value, str)), *comments])


def missing_citations(text: str) -> set[str]:
    """Return the cited pages, rules, decisions and laws that do not exist. For laws pass prose (`prose`)."""
    missing = {page for page in re.findall(r"[\w./-]*\w\.md\b", text) if page.removeprefix("./") not in file_names()}
    for cited in re.findall(r"ordering\.md`? (\d[\d.]*(?:(?:, | and | to |-|–)\d[\d.]*)*)", text):
        missing |= {f"ordering.md {rule}" for rule in re.findall(r"\d+(?:\.\d+)?", cited) if rule not in rules()}
    numbers = {path.name[:4] for path in (ROOT / "docs" / "adr").glob("*.md")}
    missing |= {f"ADR {number}" for number in re.findall(r"\bADR (\d+)", text) if number.zfill(4) not in numbers}
    return missing


def missing_laws(text: str) -> set[str]:
    return set(re.findall(rf"(?<![\w`#$@.-]){LAW}(?![\w`]|\.\d)", text)) - laws()


def test_every_cited_page_rule_decision_and_law_exists() -> None:
    for path in texts():
        text = read(path)
        if path == Path(__file__) or not missing_citations(text) | missing_laws(text):
            continue  # docstrings and comments are a part of the text
        missing = missing_citations(prose(path)) | (set() if place(path) in NOT_LAWS else missing_laws(prose(path)))
        assert not missing, f"{place(path)} cites what is not in the repository: {', '.join(sorted(missing))}"


def test_missing_citation_is_found() -> None:
    assert missing_citations("rules: nowhere.md, docs/nowhere.md, ordering.md 3.1") == {"nowhere.md", "docs/nowhere.md"}
    assert missing_citations("(ordering.md 2, 99, 3.99 to 4.98)") == {"ordering.md 99", "ordering.md 3.99", "ordering.md 4.98"}
    assert missing_citations("see ADR 1 and ADR 999, docs/wire.md") == {"ADR 999"}
    assert missing_laws("O1–O8, R4a, R10 and S9, O9: R4d") == {"S9", "O9"}


def missing_names(path: Path) -> set[str]:
    """Return the files, tests and modules of the repository that a document names and that do not exist."""
    text = read(path)
    missing = set()
    for file, test in re.findall(r"`((?:[\w.-]+/)*[\w-]+\.py)(?:::(\w+))?`", text):
        if file.endswith("__init__.py"):
            continue
        if "/" in file or path.name in INTERNAL_PAGES or path.parent.name == "adr":
            if file not in file_names():
                missing.add(file)
            elif test and f"def {test}(" not in (ROOT / file).read_text():
                missing.add(f"{file}::{test}")
    for file, names in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`\s+\(((?:`[\w.]+`(?:,\s+)?)+)\)", text):
        found = [each for each in sources() if place(each).endswith(f"/{file.partition('/')[2] or file}")]
        missing |= {
            f"{name} in {file}"
            for name in re.findall(r"`([\w.]+)`", names)
            if found and not any(re.search(rf"\b{part}\b", read(each)) for each in found for part in [name.rpartition(".")[2]])
        }
    for name in re.findall(rf"\blockstep\.(?:{'|'.join(roots())})(?:\.[a-z]\w*)*\b", text):
        parent, _, last = name.rpartition(".")
        source = modules().get(parent)
        known = name in modules() or any(each.startswith(f"{name}.") for each in modules())
        if not known and (source is None or not re.search(rf"\b{last}\b", source.read_text())):
            missing.add(name)
    return missing


def test_every_file_test_and_module_named_in_a_document_exists() -> None:
    for path in pages():
        missing = missing_names(path)
        assert not missing, f"{place(path)} names what is not in the repository: {', '.join(sorted(missing))}"


def test_missing_name_in_a_document_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`broker/app.py`, `broker/nowhere.py`, `tests/test_tidy.py::test_nothing`, `mine.py`, lockstep.client.sync, lockstep.client.nowhere"
    )
    assert missing_names(page) == {"broker/nowhere.py", "tests/test_tidy.py::test_nothing", "lockstep.client.nowhere"}


def test_every_law_names_tests_and_every_ordering_rule_has_one_heading() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text()
    assert {f"O{n}" for n in range(1, 9)} | {f"R{n}" for n in (1, 2, 3, 5, 6, 7, 8, 9, 10)} <= laws()
    sections = re.split(rf"^\*\*(?={LAW}\*\* )", text, flags=re.MULTILINE)[1:]
    assert all("`tests/" in section for section in sections), "a law without a test"
    headings = re.findall(r"^###? (\d+(?:\.\d+)?)\.? ", (ROOT / "docs" / "ordering.md").read_text(), re.MULTILINE)
    assert len(headings) == len(set(headings)), "a rule's number is used twice"
    ruled = re.split(r"^### ", (ROOT / "docs" / "ordering.md").read_text(), flags=re.MULTILINE)[1:]
    incomplete = [rule.partition("\n")[0] for rule in ruled if not all(part in rule for part in ("*Without", "*Code:*", "`tests/"))]
    assert not incomplete, f"rules without reason, code or test: {incomplete}"


def test_decision_record_has_decision_context_and_consequence() -> None:
    paths = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(path.name[:4]) for path in paths] == list(range(1, len(paths) + 1)), "each decision has a number of its own"
    for path in paths:
        text = read(path)
        assert re.match(rf"# {int(path.name[:4])}\. ", text), "its title begins with its number"
        parts = re.findall(r"^(?:#+ |- \*\*)(Decision|Context|Consequence)\b", text, re.MULTILINE)
        in_order = ["Decision", "Context", "Consequence"] * (len(parts) // 3)
        assert parts == (in_order or ["Decision"]), f"{place(path)} does not have these three parts in this order"


def test_documented_log_events_exist() -> None:
    source = "".join(read(path) for path in sources())
    for page in ("operations.md", "store.md"):
        named = re.findall(r"`([a-z]+\.(?!py|md|json|toml)[a-z_]+)`", (ROOT / "docs" / page).read_text())
        assert not [event for event in named if f'"{event}"' not in source], page


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_and_pages_are_linked(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"
    if page.parent == ROOT / "docs":
        unlinked = [name for name in re.findall(r"(?<!\[)`docs/(\w+\.md)`", text) if name != page.name]
        assert not unlinked, f"{page.name} names pages without a link: {unlinked}"


def test_no_file_has_the_marks_of_an_unfinished_merge() -> None:
    marks = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    paths = [ROOT / name for name in tracked_files()]
    found = [place(path) for path in paths if path.is_file() and marks.search(path.read_bytes())]
    assert not found
