"""``--app MODULE:APP``: settings made by a Python module, with functions that a file cannot contain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streams_app import cli
from streams_app.cli.options import named
from streams_app.settings import Settings

FOLD = 'Fold(name="f", source="s", group_key=lambda event: event["g"], changed="m", quiet_period="1m")'
DECLARED = f'from streams_app import Fold, Settings, create_app\nsettings = Settings(app_id="mine", folds=({FOLD},))\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the current directory; the modules imported from it are forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--config", "x", "worker"], "--config must follow the command: streams-app COMMAND --config FILE"),
        (["groups", "--app", "m:a", "list"], "--app must follow the command: streams-app groups COMMAND --app MODULE:APP"),
        (["--conf", "x", "worker"], "No such option: --conf"),
        (["demo", "--config", "x"], "No such option: --config"),
    ],
)
def test_misplaced_option_error_says_where_it_belongs(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == cli.run(arguments)
    assert hint in capsys.readouterr().err


def test_every_command_with_a_config_option_has_an_app_option() -> None:
    options = {path: {parameter.name for parameter in command.params} for path, command in commands(cli.group)}
    with_settings = {path for path, names in options.items() if "config" in names}

    assert ("dead-letters", "replay") in with_settings
    assert {path for path in options if path[0] not in ("demo", "servers") and path != ("live", "script")} == with_settings
    assert set() == {path for path in with_settings if "app" not in options[path]}


@pytest.mark.parametrize(
    ("text", "app"),
    [
        pytest.param("", "my_folds:settings", id="settings"),
        pytest.param("app = create_app(settings)\n", "my_folds:app", id="an application"),
        pytest.param("app = create_app(settings)\n", "my_folds", id="a module whose application is called app, as faust has it"),
        pytest.param("app = settings\n", "my_folds", id="settings called app"),
    ],
)
def test_module_in_the_current_directory_provides_settings_with_functions(folder: Path, text: str, app: str) -> None:
    (folder / "my_folds.py").write_text(DECLARED + text)
    made = named(None, app)
    settings = made if isinstance(made, Settings) else made.settings

    assert "mine" == settings.app_id
    assert callable(settings.fold("f").group_key)


def test_module_in_a_package_is_found(folder: Path) -> None:
    (folder / "my_package").mkdir()
    (folder / "my_package" / "folds.py").write_text(DECLARED)
    made = named(None, "my_package.folds:settings")

    assert isinstance(made, Settings)


@pytest.mark.parametrize(
    ("text", "app", "expected"),
    [
        pytest.param("", "ny_folds:app", "there is no module 'ny_folds' in ", id="no such module"),
        pytest.param("", "my_folds.app", "there is no module 'my_folds.app' in ", id="a dot instead of the colon"),
        pytest.param("", ":app", "'' is not a name of a module", id="no module"),
        pytest.param("", "..:app", "'..' is not a name of a module", id="a relative name"),
        pytest.param("", "my_folds:ap", "the module 'my_folds' has no 'ap'", id="no such name"),
        pytest.param("app = 1\n", "my_folds:app", "'app' in 'my_folds' is of type int, not what create_app(", id="something else"),
        pytest.param("import nowhere\n", "my_folds:app", "raised ModuleNotFoundError: No module named 'nowhere' (", id="an import"),
        pytest.param("1 / 0\n", "my_folds:app", "raised ZeroDivisionError: division by zero (", id="it raises"),
        pytest.param("raise SystemExit(3)\n", "my_folds:app", "raised SystemExit: 3 (", id="it ends the process"),
        pytest.param("app = (\n", "my_folds:app", "importing 'my_folds' raised SyntaxError: ", id="it is no Python"),
        pytest.param('Settings(app_id="a b", folds=())\n', "my_folds:app", "--app: my_folds: app_id: String should", id="settings"),
        pytest.param('Settings(app_id="a b", http=1)\n', "my_folds:app", "--app: my_folds: http: Input should", id="each fault"),
        pytest.param('Settings.load(None, {})\n', "my_folds:app", "there is no streams.toml here", id="a file that is missing"),
    ],
)  # fmt: skip
def test_unusable_app_exits_with_1_and_an_explanation(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, app: str, expected: str
) -> None:
    (folder / "my_folds.py").write_text(DECLARED + text)
    code = cli.run(["groups", "list", "--app", app])
    err = capsys.readouterr().err

    assert expected in err
    assert "Traceback" not in err
    assert 1 == code


def test_error_raised_by_a_module_is_reported_with_its_location(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my_folds.py").write_text("\n\ndef divide():\n    return 1 / 0\n\ndivide()\n")
    cli.run(["check", "-A", "my_folds:app"])

    assert f"({folder / 'my_folds.py'}:4)" in capsys.readouterr().err


def test_file_and_app_exclude_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["worker", "--config", "streams.toml", "--app", "my_folds:app"])

    assert "--config and --app exclude each other" in capsys.readouterr().err
    assert 1 == code
