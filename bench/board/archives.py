"""Archives of `bench gpu`: a tar file with records and weights, made by somebody else.

Nothing is extracted. A member is read in memory if it is a plain file and not too large, and its name is never used: a
record is known by what is in it, and its weights by their SHA-256.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic_core import from_json

from bench.board.submissions import MAX_BYTES, Problems, check_text
from bench.records import SELF_REPORTED, BadRecord, RunRecord, write

MAX_WEIGHTS = 1 << 28  # bytes; the largest model of the suite has some 30 MB
MAX_MEMBERS = 10_000


def add(archive: Path, runs: Path, known: Collection[str]) -> tuple[dict[Path, RunRecord], Problems]:
    """Take in the good records with their weights; the files written, and the members refused with the reason."""
    added: dict[Path, RunRecord] = {}
    try:
        records, refused = read_records(archive, known)
        for _, content in members(archive, MAX_WEIGHTS):
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            for record in [record for record in records if record.weights == digest]:
                added[write(runs / SELF_REPORTED, record, content)] = record
                records.remove(record)
    except BadRecord as error:
        return added, [(archive, str(error))]
    return added | {write(runs / SELF_REPORTED, record, None): record for record in records}, refused


def read_records(archive: Path, known: Collection[str]) -> tuple[list[RunRecord], Problems]:
    records: dict[str, RunRecord] = {}
    refused: Problems = []
    for name, content in members(archive, MAX_BYTES):
        if not is_record(content):
            continue
        try:
            record = check_text(content)
            if record.id in {*known, *records}:
                raise BadRecord("the same run as a record that is here")
            records[record.id] = record
        except BadRecord as error:
            refused.append((archive / shown(name), str(error)))
    return list(records.values()), refused


def members(archive: Path, most: int) -> Iterator[tuple[str, bytes]]:
    """Plain files of at most so many bytes. Only an uncompressed archive: a small file cannot become a large one."""
    try:
        with tarfile.open(archive, "r:") as tar:
            for i, member in enumerate(tar):
                if i == MAX_MEMBERS:
                    raise BadRecord(f"more than {MAX_MEMBERS:,} members")
                file = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if file is not None and member.size <= most:
                    yield member.name, file.read()
    except BadRecord:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise BadRecord(f"not a tar archive, uncompressed and whole ({error})") from error


def is_record(content: bytes) -> bool:
    """Whether it claims to be one: an archive also has facts, logs and tables."""
    if not content.startswith(b"{"):
        return False
    try:
        tree = from_json(content)
    except ValueError:
        return False
    return isinstance(tree, dict) and "config" in tree


def shown(name: str) -> str:
    """The last part of a member's name, for a message."""
    return "".join(sign if sign.isprintable() else "?" for sign in name.rpartition("/")[2][:100])
