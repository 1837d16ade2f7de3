#!/usr/bin/env python3
"""Judges what the project depends on: licences, versions of a crate beside each other, and the Rust that they need. And whether
each crate below crates/ has what a registry shows.

    scripts/dependencies.py

Reads `cargo metadata` of the workspace and of crates with builds of their own (APART). Fails where a dependency has a licence that
is not in ALLOWED, where a program or library of the project would link two versions of a crate that is not in TWICE (or APART), where
a dependency needs a newer Rust than Cargo.toml promises, or where a crate has no description, keywords, categories
or oldest Rust.
"""

import json
import pathlib
import re
import subprocess
import sys

# Permissive, and compatible with MIT OR Apache-2.0.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}

# Two versions of these are linked, because the crates named use different ones.
TWICE = {
    "embedded-io": "postcard's features that are off: in Cargo.lock only",
    "foldhash": "hashbrown",
    "hashbrown": "string-interner of wasmi, and aya",
    "miniz_oxide": "backtrace and flate2",
    "object": "backtrace and aya-obj",
    "syn": "build time only",
    "windows-sys": "other systems only",
    "winnow": "toml and its parser",
}

# Crates with builds of their own, and what these link in two versions.
APART = {
    "crates/serve/services-wasmtime": {
        "addr2line": "wasmtime, and backtrace",
        "embedded-io": "postcard's features that are off: in Cargo.lock only",
        "foldhash": "wasmparser's hashbrown",
        "gimli": "wasmtime, and backtrace",
        "hashbrown": "wasmparser and string-interner of wasmi, and aya",
        "object": "wasmtime, backtrace and aya-obj",
        "syn": "build time only",
        "wasmparser": "wasmtime, and wasmi",
        "windows-sys": "other systems only",
        "winnow": "toml and its parser",
    },
}

CRATES = pathlib.Path(__file__).resolve().parent.parent / "crates"

# What a registry shows of a crate. `repository` joins them when the project has a public address.
SHOWN = ["description", "license", "keywords", "categories", "rust_version"]


def allowed(expression):
    """Whether one choice of an SPDX expression is allowed. `/` is how old crates write OR."""
    tokens = re.findall(r"\(|\)|\bOR\b|\bAND\b|[^\s()]+(?: WITH \S+)?", expression.replace("/", " OR "))

    def either(at):
        good, at = both(at)
        while at < len(tokens) and tokens[at] == "OR":
            other, at = both(at + 1)
            good = good or other
        return good, at

    def both(at):
        good, at = one(at)
        while at < len(tokens) and tokens[at] == "AND":
            other, at = one(at + 1)
            good = good and other
        return good, at

    def one(at):
        if tokens[at] == "(":
            good, at = either(at + 1)
            return good, at + 1
        return tokens[at] in ALLOWED, at + 1

    return either(0)[0]


def version(text):
    return tuple(int(part) for part in (text + ".0.0").split(".")[:2])


def judge(manifest, twice):
    """What is wrong with what a build depends on, the number of dependencies, and the oldest Rust that it promises."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", manifest]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    # Of a build apart, the crates of the workspace are judged with that.
    own = {p["id"] for p in metadata["packages"] if p["source"] is None}
    members = set(metadata["workspace_members"])
    packages = metadata["packages"]
    promised = min(version(p["rust_version"]) for p in packages if p["id"] in members and p["rust_version"])
    wrong = []
    versions = {}
    for package in packages:
        if package["id"] in members and package["manifest_path"].startswith(f"{CRATES}/"):
            lacks = [field for field in SHOWN if not package.get(field)]
            if lacks:
                wrong.append(f"{package['name']} has no {', '.join(lacks)}: a registry shows them")
        name = f"{package['name']} {package['version']}"
        if package["id"] not in own:
            versions.setdefault(package["name"], set()).add(package["version"])
        if not package.get("license"):
            wrong.append(f"{name} names no licence")
        elif not allowed(package["license"]):
            wrong.append(f"{name} has licence {package['license']}: take another crate, or allow it here")
        if package.get("rust_version") and version(package["rust_version"]) > promised:
            wrong.append(f"{name} needs Rust {package['rust_version']}: raise rust-version in Cargo.toml, or take an older one")
    several = {name: found for name, found in versions.items() if len(found) > 1}
    for name in sorted(set(several) - set(twice)):
        wrong.append(f"{name} is there as {', '.join(sorted(several[name]))}: use one, or say in scripts/dependencies.py why not")
    for name in sorted(set(twice) - set(several)):
        wrong.append(f"{name} is there once only: take it out of scripts/dependencies.py")
    return wrong, len(packages) - len(own), promised


def main():
    wrong, count, promised = judge("Cargo.toml", TWICE)
    for folder, twice in APART.items():
        more, dependencies, _ = judge(f"{folder}/Cargo.toml", twice)
        wrong.extend(f"{folder}: {line}" for line in more)
        count += dependencies
    for line in wrong:
        print(line)
    print(f"{count} dependencies, {len(wrong)} complaints; Rust {promised[0]}.{promised[1]} and newer")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
