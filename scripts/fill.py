#!/usr/bin/env python3
"""Fills comments that are too long, and continues long texts of Rust on the next line.

    scripts/fill.py [PATH...]      changes the files; scripts/text.py says which need it

Of a comment only paragraphs with a line of more than 100 columns are filled anew, from that line on. Tables, code, drawings and
aligned columns stay as they are. A text is continued at a blank that stands outside of braces, in lines of more than 120 columns.
What is left after this is code that rustfmt gives up on: it takes a variable. Run `cargo fmt` afterwards.
"""

import re
import subprocess
import sys

COMMENT = 100
CODE = 120
C = ("c", "h", "hpp", "cpp")


def is_fixed(text):
    """Whether this line of a comment is no part of a paragraph."""
    return (
        not text.strip()
        or text.lstrip().startswith(("|", "#", "<", "```", "~~~"))
        or text.startswith("    ")
        or re.search(r"\S {3,}\S", text) is not None
    )


def fill(texts, width):
    """The lines of a comment, without their marker, each within `width` columns where it can be."""
    out = []
    at = 0
    is_code = False
    while at < len(texts):
        text = texts[at]
        if text.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        if is_code or is_fixed(text):
            out.append(text)
            at += 1
            continue
        lead, bullet = re.match(r"(\s*)((?:[-*] |\d+\. )?)", text).groups()
        end = at + 1
        while end < len(texts) and not is_fixed(texts[end]):
            inner = re.match(r"(\s*)((?:[-*] |\d+\. )?)", texts[end])
            if inner.group(2) or (not bullet and inner.group(1) != lead):
                break
            end += 1
        paragraph = texts[at:end]
        at = end
        too_long = next((n for n, line in enumerate(paragraph) if len(line) > width), None)
        if too_long is None:
            out.extend(paragraph)
            continue
        out.extend(paragraph[:too_long])
        rest = " ".join(line.strip() for line in paragraph[too_long:])
        # What stands between backticks stays together.
        words = re.findall(r"(?:`[^`]*`|\S)+", rest) if rest.count("`") % 2 == 0 else rest.split()
        hanging = lead + " " * len(bullet)
        line = (hanging if too_long else lead) + words[0]
        for word in words[1:]:
            if len(line) + 1 + len(word) > width:
                out.append(line)
                line = hanging + word
            else:
                line += " " + word
        out.append(line)
    return out


def fill_comments(lines, is_c):
    """A file's lines with its comments filled."""
    out = []
    at = 0
    while at < len(lines):
        found = re.match(r"(\s*//[/!]?)(?: |$)", lines[at])
        block = found and found.group(1)
        end = at
        while block and end < len(lines) and (lines[end] == block or lines[end].startswith(block + " ")):
            end += 1
        if block and any(len(line) > COMMENT for line in lines[at:end]):
            texts = fill([line[len(block) + 1 :] for line in lines[at:end]], COMMENT - len(block) - 1)
            out.extend(f"{block} {text}".rstrip() for text in texts)
            at = end
            continue
        opened = is_c and re.match(r"(\s*)/\* (\S.*)\*/$", lines[at])
        if opened and len(lines[at]) > COMMENT:
            indent, text = opened.groups()
            texts = fill([text.rstrip()], COMMENT - len(indent) - 6)
            out.append(f"{indent}/* {texts[0]}")
            out.extend(f"{indent} * {text}" for text in texts[1:])
            out[-1] += " */"
            at += 1
            continue
        star = is_c and re.match(r"(\s*) \*(?: |$)", lines[at])
        if star:
            block = star.group(1) + " *"
            end = at
            while end < len(lines) and (lines[end] == block or lines[end].startswith(block + " ")):
                end += 1
            body = lines[at:end]
            if body and not any("*/" in line for line in body) and any(len(line) > COMMENT for line in body):
                texts = fill([line[len(block) + 1 :] for line in body], COMMENT - len(block) - 1)
                out.extend(f"{block} {text}".rstrip() for text in texts)
                at = end
                continue
        out.append(lines[at])
        at += 1
    return out


def texts_of(source):
    """Where the text literals of a Rust source begin and end, without raw ones."""
    at = 0
    while at < len(source):
        if source.startswith("//", at):
            at = source.find("\n", at) if "\n" in source[at:] else len(source)
        elif source.startswith("/*", at):
            at = source.find("*/", at) + 2
        elif (raw := re.compile(r'\b(?:b|c)?r(#*)"').match(source, at)) is not None:
            at = source.find('"' + raw.group(1), raw.end()) + 1 + len(raw.group(1))
        elif source[at] == '"':
            end = at + 1
            while source[end] != '"':
                end += 2 if source[end] == "\\" else 1
            yield at, end + 1
            at = end + 1
        elif (char := re.compile(r"'(\\(?:u\{[^}]*\}|x..|.)|[^\\'])'").match(source, at)) is not None:
            at = char.end()
        else:
            at += 1


def continue_texts(source):
    """A Rust source whose long texts are continued on the next line."""
    while True:
        begin = 0
        place = None
        spans = list(texts_of(source))
        for line in source.split("\n"):
            end = begin + len(line)
            if len(line) > CODE and not line.lstrip().startswith("//"):
                for start, stop in ((s, e) for s, e in spans if e > begin and s < end):
                    depth = 0
                    for n in range(max(start + 1, begin), min(stop - 1, end)):
                        depth += {"{": 1, "}": -1}.get(source[n], 0)
                        is_blank = source[n] == " " and source[n + 1] not in ' \\"' and source[n - 1] not in " \\"
                        if is_blank and depth <= 0 and 60 < n - begin < CODE - 2 and source[begin:n].strip():
                            place = (n, begin, start)
            if place:
                break
            begin = end + 1
        if not place:
            return source
        n, begin, start = place
        indent = re.match(r" *", source[begin:]).end()
        if start >= begin:
            indent += 4 if source[begin:start].strip() else 1
        source = source[: n + 1] + "\\\n" + " " * indent + source[n + 1 :]


def main():
    listed = subprocess.run(["git", "ls-files", *sys.argv[1:]], check=True, capture_output=True, text=True)
    changed = 0
    for path in listed.stdout.split():
        kind = path.rsplit(".", 1)[-1]
        if kind != "rs" and kind not in C:
            continue
        with open(path, encoding="utf-8") as file:
            before = file.read()
        after = "\n".join(fill_comments(before.split("\n"), kind in C))
        if kind == "rs":
            after = continue_texts(after)
        if after != before:
            changed += 1
            with open(path, "w", encoding="utf-8") as file:
                file.write(after)
    print(f"{changed} files changed")


if __name__ == "__main__":
    main()
