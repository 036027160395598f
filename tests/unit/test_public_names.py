"""The names that users import from ``streams_app``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module

import pytest

import streams_app
from tests.checkout.imports import module_of, tree_of
from tests.test_house import MODULES


@pytest.mark.parametrize("name", streams_app.__all__)
def test_public_name_can_be_imported(name: str) -> None:
    assert getattr(streams_app, name).__module__.startswith("streams_app")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = streams_app.Nothing


def signatures() -> Iterator[tuple[str, str, set[str]]]:
    """Yield module, class and arguments of each signature that a model has for type checkers only."""
    for path in MODULES:
        for owner in ast.walk(tree_of(path)):
            match owner:
                case ast.ClassDef(body=body):
                    for node in body:
                        match node:
                            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=[ast.FunctionDef(name="__init__", args=args)]):
                                yield module_of(path), owner.name, {one.arg for one in args.kwonlyargs}


SIGNATURES = list(signatures())


@pytest.mark.parametrize(("module", "name", "arguments"), SIGNATURES, ids=[name for _, name, _ in SIGNATURES])
def test_signature_for_type_checkers_has_every_field_of_the_model(module: str, name: str, arguments: set[str]) -> None:
    model = getattr(import_module(module), name)

    assert set(getattr(model, "model_fields", None) or model.__dataclass_fields__) == arguments
