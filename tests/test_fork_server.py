"""Which commands are forked from a process that has imported the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.helpers.worker.fork_server import PYTHONPATH, is_forkable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

COMMAND = [sys.executable, "-m", "streams_app", "check"]


@pytest.mark.parametrize(("name", "is_forked"), [("shop_events.py", True), ("json.py", False), ("yaml", False)])
def test_command_with_a_search_path_is_forked_unless_that_has_a_module_of_the_server(
    tmp_path: Path, name: str, is_forked: bool
) -> None:
    (tmp_path / name).touch()
    (tmp_path / "__pycache__").mkdir()  # of a command that has run there

    assert is_forked == is_forkable(COMMAND, {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(tmp_path)])})


def test_command_with_a_variable_of_the_interpreter_is_not_forked() -> None:
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH}

    assert is_forkable(COMMAND, variables)
    assert not is_forkable(COMMAND, variables | {"PYTHONHASHSEED": "1"})
