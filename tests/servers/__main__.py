"""`python -m tests.servers`: fetches every server the tests can run against into `.cache/`; exit code 1 when one fails."""

from __future__ import annotations

import sys

from tests.servers import apache_kafka, apicurio, opensearch, prometheus, redis7
from tests.servers.cache import ServerUnavailableError


def main() -> int:
    """Fetch every server; if one cannot be fetched, continue with the others."""
    failures = 0
    for name, fetch in ((server.NAME, server.fetch) for server in (apache_kafka, apicurio, opensearch, prometheus, redis7)):
        try:
            print(f"{name}: {fetch(print)}", flush=True)
        except ServerUnavailableError as error:
            print(f"{name}: cannot be had: {error}", file=sys.stderr, flush=True)
            failures = 1
    return failures


if __name__ == "__main__":
    sys.exit(main())
