"""Journals in ``streams.toml``: what is accepted, and the messages for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.errors import ConfigurationError
from streams_app.settings import JournalSettings
from streams_app.settings.journals import MAX_SEGMENT_BYTES
from tests.unit.settings.settings_file import faults, load

JOURNAL = """
app_id = "social"
[journals.accounts]
source = "post-metric-updated"
key = "account_id"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.toml"


def test_journal_alone_is_enough_to_run(file: Path) -> None:
    (journal,) = load(file, JOURNAL).journals

    assert ("accounts", "journal.accounts", ("account_id",), 30 * 86_400_000, 0) == (
        journal.name, journal.group, journal.key_fields, journal.keep_ms, journal.compress_after_ms,
    )  # fmt: skip


def test_environment_overrides_a_journal(file: Path) -> None:
    environ = {"STREAMS_APP_JOURNALS_ACCOUNTS_KEEP": "2d", "STREAMS_APP_JOURNALS_ACCOUNTS_KEY": "a, b.c"}
    (journal,) = load(file, JOURNAL, environ).journals

    assert (2 * 86_400_000, ("a", "b.c")) == (journal.keep_ms, journal.key_fields)


def test_partitions_share_max_bytes_evenly_and_a_segment_takes_at_most_an_eighth() -> None:
    journal = JournalSettings(name="a", source="t", key="@key", max_bytes=8_000_000)
    large = JournalSettings(name="a", source="t", key="@key", max_bytes=10**12)

    assert (2_000_000, 250_000) == (journal.share(4), journal.segment_bytes(4))
    assert MAX_SEGMENT_BYTES == large.segment_bytes(4)
    assert 500_000 == journal.stored_segment_bytes(4)


@pytest.mark.parametrize("key", ["@key", ("@key",)])
def test_record_key_is_a_valid_key(key: str | tuple[str, ...]) -> None:
    assert ("@key",) == JournalSettings(name="a", source="t", key=key).key_fields


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("keeps = '1d'", "journals.accounts.keeps: unknown key, did you mean 'keep'?"),
        ("compress_ratio = 1", "journals.accounts.compress_ratio: unknown key, did you mean 'compress_rate'?"),
        ("name = 'x'", "journals.accounts.name: unknown key, the name of a journal is that of its table"),
        ("compress_rate = -1", "journals.accounts.compress_rate: Input should be greater than or equal to 0"),
        ("max_bytes = 999_999", "journals.accounts.max_bytes: Input should be greater than or equal to 1000000"),
        ("keep = 30", "journals.accounts.keep: 30 is not a duration: write a number and a unit, as in 500ms, 90s, 15m, 6h, 2d"),
        ("keep = '59s'", "journals.accounts: keep must be between 1m and 3650d"),
        (
            "keep = '1h'\ncompress_after = '1h'",
            "journals.accounts: compress_after must be shorter than keep: removed segments are never compressed",
        ),
        ("[journals.b]\nkey = 3", 'journals.b.key: must be a field, a dotted path, a list of them, or "@key"'),
        ("[journals.b]\nkey = 'a'", "journals.b.source: is required"),
        ("[journals.Bad]\nkey = 'a'\nsource = 't'", "journals.Bad.name: the name of a journal has a-z, 0-9, _ and -, and begins "
         "with a letter or digit; at most 63"),
        (
            "[journals.b]\nkey = ['a', '@key', 'x..y', '@keys']\nsource = 'no topic'\nkeep = '4000d'",
            "journals.b: @key cannot be combined with fields; key = 'x..y' is not a field or a dotted path; '@keys' begins with @ "
            "and is not @key, the record key, did you mean '@key'?; source = 'no topic' is not a Kafka topic name (a-z A-Z 0-9 . "
            "_ -, at most 249); keep must be between 1m and 3650d",
        ),
        ("[journals.b]\nkey = []\nsource = 't'", "journals.b: key must name at least one field, each once"),
    ],
)  # fmt: skip
def test_each_fault_is_reported(file: Path, text: str, fault: str) -> None:
    assert fault in faults(file, JOURNAL + text)


def test_all_faults_are_reported_together(file: Path) -> None:
    found = faults(file, JOURNAL + "keeps = '1d'\n[journals.b]\nkey = 'a'\n[folds.a]\nsource = 't'")

    assert {"journals.accounts.keeps", "journals.b.source", "folds.a.group_key"} <= {fault.partition(":")[0] for fault in found}


def test_duplicate_journal_name_is_rejected_in_python() -> None:
    from streams_app import Settings

    journal = JournalSettings(name="a", source="t", key="@key")

    with pytest.raises(ValueError, match="two journals have the same name"):
        Settings(app_id="social", journals=(journal, journal))


def test_journal_is_found_by_its_name(file: Path) -> None:
    one = load(file, JOURNAL)
    two = load(file, JOURNAL + "[journals.posts]\nsource = 't'\nkey = '@key'\n")
    none = load(file, JOURNAL.replace("[journals.accounts]", "[live.accounts]\nkind='count'\npage='a'\nexpiry='1h'\npublic=true")
                .replace('key = "account_id"', ""))  # fmt: skip

    assert "accounts" == one.journal(None).name
    assert "posts" == two.journal("posts").name
    for settings, name, expected in (
        (two, None, "there are several journals: name one with --journal: accounts, posts"),
        (two, "post", "there is no journal 'post', did you mean 'posts'? (there are: accounts, posts)"),
        (none, None, "there is no journal in the settings; declare one as a table [journals.NAME]"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            settings.journal(name)
        assert [expected] == caught.value.faults


def test_registry_format_needs_its_url_and_envelope_field_needs_a_format(file: Path) -> None:
    framed = JOURNAL + 'format = "avro"\n'

    assert """journal 'accounts': format = "avro" needs schema_registry.url""" in "; ".join(faults(file, framed))
    assert "avro" == load(file, framed + '[schema_registry]\nurl = "http://r:1"\n').journals[0].format
    beside = JOURNAL.replace('"account_id"', '"@source.table"')
    assert "begins with @ and is not @key" in "; ".join(faults(file, beside))
    assert ("@source.table",) == load(file, beside + 'format = "debezium"\n').journals[0].key_fields
