#!/usr/bin/env python3
"""Judges how sources read: columns, words, sizes of files.

    scripts/text.py            checks; the last line says what was found

A comment has at most 100 columns, code 120, a file of code 700 lines. Comments and documents use the terms of the field, not
those of PRIVATE; SPECIFICATION.md, CHANGELOG.md and the glossary itself are left out. `scripts/fill.py` fills comments that are too
long.

No limit holds for tables, for drawings and aligned columns, for code in comments, for what is one word (an address), and for
programs in test fixtures. Marks of a merge that was not finished are a complaint in any file.
"""

import re
import subprocess
import sys

COMMENT = 100
CODE = 120
LINES = 700

# What native engineers tripped over, and what to say instead. Only what a search finds exactly.
PRIVATE = {
    r"\b(go|goes|went|gone) on (and on|with|to)\b|\b(goes|went) on\b": "continues",
    r"\b(holds?|held) (up|(it|them|main|others|nobody|the caller|a caller|clients?) up)\b": "blocks, delays",
    r"\b(be|to be|was|were) had\b": "is available",
    r"\bwants? root\b": "needs root",
    r"\b(mend|mends|mended|mending)\b": "fixes",
    r"\bas long as (it|they) likes?\b": "indefinitely",
    r"\bby chance\b": "at random",
    r"\b(crowded|busy) machine\b": "loaded machine",
    r"\bsees? to it\b": "ensures",
    r"\b[Tt]old\b": "reported, learns, asked",
    r"\b(a|one|two|three|each|first|second|last|long) looks?\b|\blooks (ago|apart)\b": "a scan, a sample, a check",
    r"\b(look|looks|looked) (again|into|after)\b|\blooked (at|for)\b": "rechecks, inspects, searches",
    r"\bwho (waits?|holds?|asks?)\b": "the thread that, the holder, the caller",
}
# The same in names of code.
PRIVATE_NAMES = {r"(?<![A-Za-z])([Tt]old|TOLD)(?![A-Za-z])": "reported"}

SOURCES = (".rs", ".c", ".h", ".hpp", ".cpp")
NOT_JUDGED = {"docs/measurements.md", "SPECIFICATION.md", "CHANGELOG.md", "docs/glossary.md", "scripts/text.py"}


def is_free(line, marker):
    """Whether no limit of columns holds for this line of a comment."""
    text = line.strip()[len(marker) :]
    return (
        "|" in text
        or text.startswith("    ")
        or re.search(r"\S {3,}\S", text) is not None
        or len(text.split()) <= 1
    )


def comment_of(line):
    """The marker of a line that is a comment; `None` for code."""
    found = re.match(r"\s*(//[/!]?|/\*+|\*(?= |/|$))", line)
    return found.group(1) if found else None


def judge(path, lines):
    """What is wrong with a file, as sentences."""
    is_source = path.endswith(SOURCES)
    # A fixture is a program that a test compiles or runs; test files have such programs in texts.
    is_fixture = "/tests/" in path
    is_in_code = False
    for number, line in enumerate(lines, 1):
        marker = comment_of(line) if is_source else None
        text = line.strip()
        if path.endswith(".md") or marker:
            text = text[len(marker or "") :].strip()
            if text.startswith("```"):
                is_in_code = not is_in_code
        if is_source and marker and len(line) > COMMENT and not is_in_code and not is_free(line, marker):
            yield f"{path}:{number}: a comment of {len(line)} columns: {COMMENT} at most"
        if is_source and not marker:
            is_in_code = False
            if len(line) > CODE and not is_fixture:
                yield f"{path}:{number}: code of {len(line)} columns: {CODE} at most"
        if is_source and not marker:
            for private, say in PRIVATE_NAMES.items():
                found = re.search(private, line)
                if found:
                    yield f'{path}:{number}: "{found.group(0)}" in code: say "{say}"'
        if (marker or path.endswith(".md")) and not is_in_code:
            words = re.sub(r"`[^`]*`|\"[^\"]*\"", "", text)
            for private, say in PRIVATE.items():
                found = re.search(private, words)
                if found:
                    yield f'{path}:{number}: "{found.group(0)}": say "{say}"'
    if is_source and len(lines) > LINES:
        yield f"{path}: {len(lines)} lines: {LINES} at most; a file is one idea"


def unmerged():
    """Lines that a merge left in any file."""
    found = subprocess.run(["git", "grep", "-nIE", "^(<{7}|[|]{7}|>{7}) "], capture_output=True, text=True).stdout
    return [f"{line}: a merge was not finished here" for line in found.splitlines()]


def main():
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    judged = [path for path in listed if path.endswith((*SOURCES, ".md")) and path not in NOT_JUDGED]
    wrong = unmerged()
    for path in judged:
        try:
            with open(path, encoding="utf-8") as file:
                wrong.extend(judge(path, file.read().split("\n")))
        except FileNotFoundError:
            # Removed, and not yet recorded as such.
            continue
    for line in wrong:
        print(line)
    print(f"{len(judged)} files, {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
