#!/usr/bin/env python3
"""Lists the test programs that cargo has built.

    cargo test --no-run --message-format=json ... | scripts/test-programs.py

One line each, in cargo's order, fields separated by tabs: package, its directory, what cargo calls the program, the options of
`cargo test` that run it alone, its path. Compiler messages go to standard error as text.
"""

import json
import subprocess
import sys

ORDER = {"lib": 0, "bin": 1, "test": 2, "example": 3, "bench": 4}


def main():
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--no-deps"], check=True, capture_output=True
        ).stdout
    )
    packages = {p["manifest_path"]: p["name"] for p in metadata["packages"]}
    found = []
    for line in sys.stdin:
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if message.get("reason") == "compiler-message":
            print(message["message"]["rendered"], file=sys.stderr, end="")
        if not message.get("executable") or not message.get("profile", {}).get("test"):
            continue
        target, manifest = message["target"], message["manifest_path"]
        kind = target["kind"][0] if target["kind"][0] in ORDER else "lib"
        directory = manifest.removesuffix("/Cargo.toml")
        source = target["src_path"].removeprefix(directory + "/")
        called = source if kind == "test" else f"unittests {source}"
        package = packages[manifest]
        alone = f"-p {package} " + ("--lib" if kind == "lib" else f"--{kind} {target['name']}")
        found.append((package, ORDER[kind], target["name"], directory, called, alone, message["executable"]))
    for package, _, _, *rest in sorted(found):
        print(package, *rest, sep="\t")


if __name__ == "__main__":
    main()
