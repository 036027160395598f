"""Three counts of the package that may only fall: each forwarder, lone module and scattered component is a detour for a reader."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

from tests.checkout.imports import ROOT, imported, modules, modules_in, tree_of

PACKAGE = ROOT / "streams_app"

LIMITS: Final = {"forwarders": 12, "lone modules": 117, "scatter": 30}

ADVICE: Final = {
    "forwarders": "let the callers call the member itself",
    "lone modules": "put what has one importer into that module, if the two are one idea",
    "scatter": "let the package of the component provide what the other one needs, so that the other does not name the component",
}
"""What to do instead of raising a limit."""

CLOSING: Final = ("close", "aclose")

COMPONENTS: Final = {"journal": "journal", "live": "live", "read_store": "read_store", "subscribers": "subscriber"}
"""Package of a component → word by which imports name it, such as ``settings.live`` or ``JournalSettings``."""


@cache
def found() -> dict[str, list[str]]:
    """Return what each ratchet counts."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {
        "forwarders": [f"{path.relative_to(PACKAGE)}: {name}" for path in paths for name in forwarders(tree_of(path))],
        "lone modules": lone_modules(),
        "scatter": sorted(scatter(paths)),
    }


def verdict(name: str, limit: int, items: list[str]) -> str:
    """Return what a contributor has to do about a count that is not its limit; "" if it is."""
    if len(items) > limit:
        text = f"{name}: {len(items)}, at most {limit} are allowed; {ADVICE[name]}. A new one is among these:"
        return "\n".join([text, *items])
    if len(items) < limit:
        return f"{name}: {len(items)} are left; lower the limit in tests/checkout/ratchets.py from {limit} to {len(items)}"
    return ""


def forwarders(tree: ast.Module) -> Iterator[str]:
    """Yield each method that only calls the method of the same name of a member, with the same arguments.

    Exempt are methods that close what the object owns, and those of classes whose base class comes from a library.
    """
    ours = {alias.asname or alias.name for node in ast.walk(tree) if _is_ours(node) for alias in node.names}
    ours |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | {"Protocol"}
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef) and all(ast.unparse(base).partition("[")[0] in ours for base in owner.bases):
            for method in owner.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name not in CLOSING and _forwards(method):
                    yield f"{owner.name}.{method.name}"


def _is_ours(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streams_app")


def _forwards(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = method.body[1:] if ast.get_docstring(method) is not None else method.body
    match body:
        case [ast.Return(value=ast.Await(value=ast.Call() as call)) | ast.Expr(value=ast.Await(value=ast.Call() as call))]:
            pass
        case [ast.Return(value=ast.Call() as call) | ast.Expr(value=ast.Call() as call)]:
            pass
        case _:
            return False
    match call.func:
        case ast.Attribute(value=ast.Attribute() as member, attr=name) if name.strip("_") == method.name.strip("_"):
            return ast.unparse(member).startswith("self.") and _passed(call) == _parameters(method.args)
        case _:
            return False


def _parameters(given: ast.arguments) -> Counter[str]:
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return Counter([*names[1:], *(one.arg for one in (given.vararg, given.kwarg) if one is not None)])


def _passed(call: ast.Call) -> Counter[str]:
    values = [*(one.value if isinstance(one, ast.Starred) else one for one in call.args), *(one.value for one in call.keywords)]
    return Counter(ast.unparse(one) for one in values)


def lone_modules() -> list[str]:
    """Return the modules that exactly one module of the package imports, also within functions."""
    ours = {module: path for module, path in modules().items() if path.is_relative_to(PACKAGE)}
    importers = Counter(
        needed
        for module, path in ours.items()
        for needed in modules_in(path, in_functions=True, for_types=True) & ours.keys() - {module}
    )
    return sorted(module for module, number in importers.items() if number == 1 and ours[module].name != "__init__.py")


def components_in(names: Iterable[str]) -> set[str]:
    """Return the components that imported names contain as a word."""
    ours = [name.removeprefix("streams_app.") for name in names if name.startswith("streams_app.")]
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", "\n".join(ours)).lower()
    return {kind for kind, word in COMPONENTS.items() if re.search(rf"(?:^|[._]){word}s?(?:[._]|$)", text, re.MULTILINE)}


def scatter(paths: Iterable[Path]) -> set[str]:
    """Return the components that the imports of a package from other packages name, for each package."""
    by_path = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in paths}
    return {
        f"{kind} in {package}"
        for path, package in by_path.items()
        for kind in components_in(name for name in imported(path) if not name.startswith(f"streams_app.{package}.")) - {package}
    }
