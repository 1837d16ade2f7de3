#!/usr/bin/env python3
"""Writes the C and C++ programs that the tutorials show into a folder, a file each, for the compiler (scripts/lint.sh).

    scripts/shown.py FOLDER        prints their names

A program is an example whose first line is a comment with its name: `/* bank.c: ... */`, `// bank.cpp: ...`. A name that stands on
two pages has a number before it.
"""

import pathlib
import re
import sys

PAGES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "tutorials"
PROGRAM = re.compile(r"^```c(?:pp)?\n((?:/\*|//) (\w+\.c(?:pp)?):.*?)^```$", re.MULTILINE | re.DOTALL)


def main():
    folder = pathlib.Path(sys.argv[1])
    found = [program for page in sorted(PAGES.glob("*.md")) for program in PROGRAM.findall(page.read_text(encoding="utf-8"))]
    assert found, f"{PAGES}: no tutorial shows a program"
    for number, (text, name) in enumerate(found):
        file = folder / f"{number}-{name}"
        file.write_text(text, encoding="utf-8")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
