#!/usr/bin/env python3
"""Judges what the project depends on: licences, versions of a crate beside each other, and the Rust that they need. And whether
each crate below crates/ has what a registry shows.

    scripts/dependencies.py

Reads `cargo metadata`. Fails where a dependency has a licence that is not in ALLOWED, where a program or library of the project
would link two versions of a crate that is not in TWICE, where a dependency needs a newer Rust than Cargo.toml promises, or where a
crate has no description, documentation, keywords, categories or oldest Rust.
"""

import json
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
    "bitflags": "redis-module's nix",
    "embedded-io": "postcard's features that are off: in Cargo.lock only",
    "foldhash": "hashbrown",
    "hashbrown": "string-interner of wasmi, and aya",
    "heck": "build time only",
    "miniz_oxide": "backtrace and flate2",
    "num-traits": "redis-module",
    "object": "backtrace and aya-obj",
    "quote": "build time only",
    "shlex": "build time only",
    "syn": "build time only",
    "winnow": "toml and its parser",
}

# What a registry shows of a crate. `repository` joins them when the project has a public address.
SHOWN = ["description", "license", "documentation", "keywords", "categories", "rust_version"]


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


def main():
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked"], check=True, capture_output=True
        ).stdout
    )
    own = set(metadata["workspace_members"])
    packages = metadata["packages"]
    promised = min(version(p["rust_version"]) for p in packages if p["id"] in own and p["rust_version"])
    wrong = []
    versions = {}
    for package in packages:
        if package["id"] in own and package["manifest_path"].startswith(f"{metadata['workspace_root']}/crates/"):
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
    for name, several in sorted(versions.items()):
        if len(several) > 1 and name not in TWICE:
            wrong.append(f"{name} is there as {', '.join(sorted(several))}: use one, or say in TWICE why not")
    for name in sorted(set(TWICE) - {name for name, several in versions.items() if len(several) > 1}):
        wrong.append(f"{name} is there once only: take it out of TWICE")
    for line in wrong:
        print(line)
    print(f"{len(packages) - len(own)} dependencies, {len(wrong)} complaints; Rust {promised[0]}.{promised[1]} and newer")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
