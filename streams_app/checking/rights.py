"""Checks the rights on topics and groups of Kafka; each finding has the command that grants the missing right."""

from __future__ import annotations

from collections.abc import Iterator

from streams_app.finding import Finding, Level
from streams_app.kafka.facts import KafkaFacts
from streams_app.kafka.rights import TOPIC, missing_of
from streams_app.requirements.declarations import Declarations


def rights_findings(declarations: Declarations, facts: KafkaFacts) -> Iterator[Finding]:
    """Yield a finding for each right in Kafka that the application needs and its user lacks.

    Nothing is yielded if no right is missing, Kafka does not report rights, or the catalogue cannot be used.
    """
    kafka = declarations.settings.kafka
    missing = missing_of(declarations.required_rights(), facts.granted)
    for one in missing:
        yield Finding(Level.ERROR, str(one), one.command(kafka))
    hidden = {one.name for one in missing if one.kind == TOPIC}
    for one in missing_of(declarations.useful_rights(), facts.granted):
        if one.name not in hidden:
            yield Finding(Level.WARNING, str(one), f"if this is needed, grant it: {one.command(kafka)}")
