"""Who may import whom: reads the imports of a tree of sources and lists what breaks the rules.

The rules are data: `TIERS` and the constants after it. `violations` applies them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "lavagna"

#: From the ground up. A part imports its own tier and those below it, never one above.
TIERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "shapes", "files", "native", "_native", ""}),
    frozenset({"ops"}),
    frozenset({"mixers"}),
    frozenset({"models"}),
    frozenset({"checkpoints", "data", "scratch"}),
    frozenset({"report", "training", "generation", "evaluation", "tasks", "audit", "cost"}),
    frozenset({"studies"}),
    frozenset({"cli", "integrations"}),
)
TIER = {part: number for number, parts in enumerate(TIERS) for part in parts}

#: Imported inside functions only: they are slow to load, or need not be there.
INSIDE_FUNCTIONS = frozenset(
    {f"{PACKAGE}._native", "triton", "transformers", "matplotlib", "pyarrow", "tokenizers"}
    | {"fla", "tensorboard", "torch.utils.tensorboard"}
)


class Import(NamedTuple):
    """One import as it stands in a file."""

    importer: str
    target: str
    line: int
    inside_function: bool
    for_types_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


class Module(NamedTuple):
    """One file: its dotted name, whether it is a package, its syntax tree."""

    name: str
    is_package: bool
    tree: ast.Module


def read_modules(source: Path) -> list[Module]:
    """Every module of the package in the folder `source`."""
    modules = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, is_package, ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return modules


def read_imports(modules: list[Module]) -> list[Import]:
    """Every import of these modules, relative ones resolved, names that are modules told from others."""
    known = {module.name for module in modules} | {f"{PACKAGE}._native"}
    found = []
    for module in modules:
        for node, inside_function, for_types_only in _imports(module.tree, False, False):
            for target in _targets(node, module, known):
                found.append(Import(module.name, target, node.lineno, inside_function, for_types_only))
    return found


def _imports(
    node: ast.AST, inside_function: bool, for_types_only: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, inside_function, for_types_only
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        yield from _imports(child, inside_function or function, for_types_only or types)


def _targets(node: ast.Import | ast.ImportFrom, module: Module, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = module.name.split(".")
        parents = parents[: len(parents) - node.level + (1 if module.is_package else 0)]
        base = ".".join([*parents, base] if base else parents)
    for alias in node.names:
        name = f"{base}.{alias.name}"
        yield name if name in known or not base.startswith(PACKAGE) else base


def part_of(module: str) -> str:
    """The part of the package that a module belongs to; "" is the package's own front."""
    return module.split(".")[1] if "." in module else ""


def below(module: str, *parents: str) -> str | None:
    """The name right below lavagna.PARENTS in a module's name: ("lavagna.ops.conv.api", "ops") -> "conv"."""
    names = module.split(".")
    start = 1 + len(parents)
    if tuple(names[1:start]) != parents or len(names) <= start:
        return None
    return names[start]


def violations(source: Path) -> list[str]:
    """Everything in the package under `source` that breaks a rule, one sentence each."""
    modules = read_modules(source)
    imports = read_imports(modules)
    ours = [i for i in imports if i.target.split(".")[0] == PACKAGE]
    op_folders = {m.name.split(".")[2] for m in modules if m.name.startswith(f"{PACKAGE}.ops.") and m.is_package}
    mixers = registered_mixers(modules)
    return [
        *(f"{m.name} is in no tier" for m in modules if part_of(m.name) not in TIER),
        *_upward(ours),
        *_heavy(imports),
        *_scratch(imports),
        *_ops(imports, op_folders),
        *_mixers(ours, mixers),
        *_models(modules, ours, mixers),
        *(f"circle: {' -> '.join(circle)}" for circle in circles(_edges(ours, lambda name: name))),
        *(f"circle of parts: {' -> '.join(circle)}" for circle in circles(_edges(ours, part_of))),
    ]


def _upward(ours: list[Import]) -> Iterator[str]:
    for i in ours:
        importer, target = part_of(i.importer), part_of(i.target)
        if importer and importer in TIER and target in TIER and TIER[importer] < TIER[target]:
            yield f"{i}: upward"


def _heavy(imports: list[Import]) -> Iterator[str]:
    for i in imports:
        heavy = any(i.target == name or i.target.startswith(f"{name}.") for name in INSIDE_FUNCTIONS)
        if heavy and not (i.inside_function or i.for_types_only):
            yield f"{i}: only inside functions"


def _is_standard(target: str) -> bool:
    return target.split(".")[0] in sys.stdlib_module_names


def _scratch(imports: list[Import]) -> Iterator[str]:
    for i in imports:
        if part_of(i.importer) != "scratch" or _is_standard(i.target) or i.target.split(".")[0] == "numpy":
            continue
        if i.target.split(".")[0] != PACKAGE or part_of(i.target) not in ("scratch", "errors"):
            yield f"{i}: scratch has NumPy and lavagna.errors only"


def _ops(imports: list[Import], folders: set[str]) -> Iterator[str]:
    for i in imports:
        importer, target = below(i.importer, "ops"), below(i.target, "ops")
        if importer in folders and target in folders and importer != target:
            yield f"{i}: operators don't import each other"
        last = i.importer.split(".")[-1]
        if importer in folders and last == "reference":
            shapes = i.target == f"{PACKAGE}.shapes"
            if not (shapes or _is_standard(i.target) or i.target.split(".")[0] == "torch"):
                yield f"{i}: a reference has torch and lavagna.shapes only"
        if part_of(i.importer) == "ops" and last != "spec" and target and i.target.endswith(".reference"):
            yield f"{i}: no implementation imports a reference"


def registered_mixers(modules: list[Module]) -> set[str]:
    """Files that hold mixers, as the registry names them ("module:Class")."""
    registry = next((m for m in modules if m.name == f"{PACKAGE}.mixers.registry"), None)
    if registry is None:
        return set()
    texts = (node.value for node in ast.walk(registry.tree) if isinstance(node, ast.Constant))
    targets = (re.fullmatch(r"([\w.]+):\w+", text) for text in texts if isinstance(text, str))
    return {target[1].split(".")[-1] for target in targets if target}


def _mixers(ours: list[Import], mixers: set[str]) -> Iterator[str]:
    for i in ours:
        importer, target = below(i.importer, "mixers"), below(i.target, "mixers")
        if importer in mixers and target in mixers and importer != target:
            yield f"{i}: mixers don't import each other"


def _models(modules: list[Module], ours: list[Import], mixers: set[str]) -> Iterator[str]:
    for i in ours:
        if part_of(i.importer) == "models" and below(i.target, "mixers") in mixers:
            yield f"{i}: models ask the registry"
    files = {f"{PACKAGE}.mixers.{mixer}" for mixer in mixers}
    for module in modules:
        if part_of(module.name) != "models":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and str(node.value).split(":")[0] in files:
                yield f"{module.name}:{node.lineno} names {node.value}: models ask the registry"


def _edges(ours: list[Import], name: Callable[[str], str]) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for i in ours:
        importer, target = name(i.importer), name(i.target)
        if not i.for_types_only and importer != target and "" not in (importer, target):
            edges.setdefault(importer, set()).add(target)
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """One circle, first name repeated at its end, for each way back that a walk in depth meets."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
        elif node not in done:
            for target in sorted(edges.get(node, ())):
                walk(target, [*path, node])
            done.add(node)

    for node in sorted(edges):
        walk(node, [])
    return found
