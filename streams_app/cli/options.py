"""Options several commands share."""

from __future__ import annotations

from pathlib import Path

import click

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Settings. Default: $STREAMS_APP_CONFIG, else ./streams.toml. STREAMS_APP_<SECTION>_<KEY> in the environment overrides.",
)
