"""Imports objects that settings and options name as MODULE:NAME; the current directory is searched first."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streams_app.errors import ConfigurationError, StreamsAppError


def attribute_of(label: str, module: str, attribute: str) -> Any:
    """Import a module of the user, and return one of its objects; ``label`` names the option or setting in messages.

    Raises:
        ConfigurationError: The module or the object does not exist, or the module cannot be imported.
        StreamsAppError: The module itself raised this error while it was imported.
    """
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    found = _imported(label, module, folder)
    if not hasattr(found, attribute):
        raise ConfigurationError([f"{label}: the module {module!r} has no {attribute!r}; name it as MODULE:NAME"])
    return getattr(found, attribute)


def _imported(label: str, name: str, folder: str) -> Any:
    try:
        return importlib.import_module(name)
    except StreamsAppError:
        raise
    except ValidationError as error:
        faults = [
            f"{label}: {name}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}".replace(": : ", ": ")
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigurationError(faults) from error
    except (Exception, SystemExit) as error:  # the user's module may raise anything during its import
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            fault = f"there is no module {name!r} in {folder}, nor is one installed; {label} is MODULE:NAME"
        elif isinstance(error, (TypeError, ValueError)) and not name.strip("."):
            fault = f"{name!r} is not a name of a module; {label} is MODULE:NAME"
        else:
            fault = f"importing {name!r} raised {type(error).__name__}: {error}"
            if not isinstance(error, SyntaxError):  # its message has the position
                frame = traceback.extract_tb(error.__traceback__)[-1]
                fault += f" ({frame.filename}:{frame.lineno})"
        raise ConfigurationError([f"{label}: {fault}"]) from error
