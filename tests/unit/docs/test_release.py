"""The release workflow publishes what was built once and tested, and no job has a secret."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = WORKFLOW["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_release_publishes_only_what_was_tested() -> None:
    assert JOBS["publish"]["needs"] == "try"
    assert JOBS["try"]["needs"] == ["build", "native"]
    assert [] == [step for step in JOBS["publish"]["steps"] if "run" in step or "checkout" in step["uses"]]


def test_token_may_be_requested_by_the_publishing_job_only_and_jobs_have_no_secret() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job} == {"publish": {"id-token": "write"}}
    assert not re.search(r"secrets\.|password", TEXT)


def test_release_starts_with_a_tag() -> None:
    # YAML 1.1 reads the key `on` as true.
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}


def test_wheel_is_tested_on_every_python_of_the_classifiers() -> None:
    proven = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]

    assert proven == [found for found in JOBS["try"]["strategy"]["matrix"]["python"] if found in proven]
