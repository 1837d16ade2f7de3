#!/usr/bin/env python3
"""Judges the links of all documents, and the table of contents of the book.

    scripts/links.py                checks; the last line says what was found
    scripts/links.py --book FOLDER  copies docs/ there, for mdBook: links to files outside of it, which a book has no page
                                    for, become names of files

A link within the project names a file that there is, and a heading of it (`#like-this`, as forges write them). Each page in
docs/ is in docs/SUMMARY.md, which mdBook makes the book from (`make docs`), exactly once. Links to other hosts are not followed. Whether
the commands that documents show are accepted is a test of the command (crates/cli/tests/face/documents_show_accepted_commands.rs). Pages of docs/reference that are
made from sources say what these say (scripts/reference.py, scripts/schema.py). Each crate has a README.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import reference
import schema

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs"

LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)(?:\s+\"[^\"]*\")?\)")


def text_of(page):
    """The lines of a page with their numbers, without examples and code."""
    is_example = False
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_example = not is_example
        elif not is_example:
            yield number, re.sub(r"`[^`]*`", lambda code: "x" * len(code.group(0)), line), line


def anchors(page, known={}):
    """The anchors of a page's headings, and those set in HTML."""
    if page not in known:
        found = {}
        names = set()
        for _, _, line in text_of(page):
            names.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
            heading = re.match(r"#{1,6} +(.*?) *#*$", line)
            if heading:
                text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "").lower()
                name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
                count = found.get(name, 0)
                found[name] = count + 1
                names.add(f"{name}-{count}" if count else name)
        known[page] = names
    return known[page]


def judge(page):
    """What is wrong with a page's links, as sentences."""
    here = page.relative_to(ROOT)
    for number, line, _ in text_of(page):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            if not to.exists():
                yield f"{here}:{number}: {target}: there is no such file"
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                yield f"{here}:{number}: {target}: no heading of {to.relative_to(ROOT)} has this anchor"


def contents():
    """What is wrong with the book's table of contents."""
    summary = BOOK / "SUMMARY.md"
    listed = [(BOOK / target).resolve() for _, line, _ in text_of(summary) for target in LINK.findall(line)]
    pages = {page.resolve() for page in BOOK.rglob("*.md")} - {summary.resolve()}
    for page in sorted(pages):
        count = listed.count(page)
        if count != 1:
            yield f"docs/SUMMARY.md: {page.relative_to(BOOK)} is in it {count} times: each page is in it once"
    for page in listed:
        if page not in pages:
            yield f"docs/SUMMARY.md: {page.relative_to(ROOT)} is not a page of docs/: mdBook does not show it"


def readmes():
    """Crates without a README, in their folder or the one above."""
    command = ["git", "ls-files", "crates/**/Cargo.toml", "tools/*/Cargo.toml", "apps/*/Cargo.toml"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for folder in (pathlib.Path(name).parent for name in names):
        if "tests" not in folder.parts and not any((ROOT / at / "README.md").exists() for at in [folder, folder.parent]):
            yield f"{folder}: has no README.md: what it is, an example, what it uses, where to look first, what it rejects"


def copy(folder):
    """Copies the book's pages, with links out of it as text."""
    shutil.copytree(BOOK, folder, dirs_exist_ok=True)
    for page in pathlib.Path(folder).rglob("*.md"):
        original = BOOK / page.relative_to(folder)

        def named(link):
            path = link.group(1).partition("#")[0]
            to = (original.parent / path).resolve()
            if re.match(r"[a-z]+:", path) or not path or BOOK in [to, *to.parents]:
                return link.group(0)
            text = link.group(0).lstrip("!")[1:].rpartition("](")[0]
            name = str(to.relative_to(ROOT))
            return f"`{name}`" if text.strip("`") in name else f"{text} (`{name}`)"

        page.write_text(LINK.sub(named, page.read_text(encoding="utf-8")), encoding="utf-8")


def main():
    if sys.argv[1:2] == ["--book"]:
        copy(sys.argv[2])
        return 0
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    pages = [ROOT / name for name in names if name and (ROOT / name).exists()]
    wrong = [line for page in pages for line in judge(page)]
    wrong.extend(contents())
    wrong.extend(reference.judge())
    wrong.extend(schema.judge())
    wrong.extend(readmes())
    for line in wrong:
        print(line)
    print(f"{len(pages)} documents, {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
