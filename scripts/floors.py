#!/usr/bin/env python3
"""The house has floors: a crate uses only crates that stand below it.

    scripts/floors.py            checks; the last line says what was found
    scripts/floors.py --print    shows the floors, top to bottom, with what each crate uses

Reads `cargo metadata` of the workspace and of crates with builds of their own (APART). A crate that is not listed in FLOORS is an error: a new crate gets its place when it is made. What
only tests use (dev-dependencies) may stand above.

The ground floor owns the raw system calls. Each other crate that uses libc denies them, in the first file of its library and
its programs (clippy knows their names: clippy.toml), and none has a `syscall` instruction of its own, but for what runs without
libc inside other programs (FREESTANDING).
"""

import json
import pathlib
import re
import subprocess
import sys

# From the ground up. Crates of one line do not use each other.
FLOORS = [
    ["orbit-linux"],
    ["orbit-testing", "orbit-bpf", "orbit-family", "orbit-derive", "orbit-section", "orbit-sandbox-lib"],
    ["orbit-tasks", "orbit-inspect", "orbit-graft", "orbit-uprobe", "rmk-section"],
    ["orbit-c", "orbit-rmk", "orbit-console", "orbit-hijack"],
    ["orbit-pins", "orbit-analyse", "orbit-services"],
    ["orbit-ahd", "orbit-shd", "orbit-keep", "orbit-remote", "orbit-why", "orbit-services-wasm"],
    ["orbit-named"],
    ["orbit-modules", "orbit-service"],
    ["orbit-watch", "orbit-services-wasmtime"],
    ["orbit-agent"],
    ["orbit-bench"],
    ["orbit-cli"],
]

# Crates that the workspace excludes: what they use is large, and built only on request.
APART = ["crates/serve/services-wasmtime"]

# By folder, the last that fits. Apps stand just below the benches, which measure them; what they share, below them; the others are on
# top, and nobody uses them.
FOLDERS = {"/apps/": "orbit-bench", "/apps/common/": "orbit-tasks", "/apps/redis-api/": "orbit-tasks", "/tools/lab/": None, "/fuzz/": None}

# All that these may use from outside the project: a program that links them pays for nothing else.
OUTSIDE = {
    "orbit-linux": {"libc"},
    "orbit-section": {"libc"},
    "orbit-tasks": {"libc", "backtrace", "allocator-api2"},
    "orbit-c": {"libc"},
    "orbit-graft": {"libc"},
}

# Only tests use these, and what the ports share for tests and benches.
TESTS_ONLY = {"orbit-testing": "orbit-apps"}

DENIES = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]"
FREESTANDING = {"orbit-sandbox-lib"}


def raw_calls(package):
    """What is wrong with how it makes system calls."""
    if package["name"] == "orbit-linux":
        return
    root = pathlib.Path(package["manifest_path"]).parent
    has_libc = any(d["name"] == "libc" and d["kind"] is None for d in package["dependencies"])
    for target in package["targets"]:
        source = pathlib.Path(target["src_path"])
        is_product = {"lib", "rlib", "cdylib", "staticlib", "bin"} & set(target["kind"])
        if has_libc and is_product and DENIES not in source.read_text():
            yield f"{source.relative_to(root.parent)} does not deny raw system calls: begin it with {DENIES}"
    if package["name"] not in FREESTANDING:
        for source in sorted((root / "src").rglob("*.rs")):
            if re.search(r'"\s*(syscall|int 0x80)\s*["\\;]', source.read_text()) and "asm!" in source.read_text():
                yield f"{source.relative_to(root.parent)} has a system call of its own: crates/base/linux owns these"


def used(package, kinds):
    """Names of the packages that it uses in one of these ways, and whether each is of the project."""
    return sorted({(d["name"], d.get("path") is not None) for d in package["dependencies"] if d["kind"] in kinds})


def read(manifest):
    """Metadata of the packages of a workspace."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--manifest-path", manifest]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main():
    metadata = read("Cargo.toml")
    floor = {name: n for n, names in enumerate(FLOORS) for name in names}
    packages = {p["name"]: p for p in metadata["packages"]}
    for folder in APART:
        packages |= {p["name"]: p for p in read(f"{folder}/Cargo.toml")["packages"]}
    for name, package in packages.items():
        for folder, above in FOLDERS.items():
            if package["manifest_path"].removeprefix(metadata["workspace_root"]).startswith(folder):
                floor[name] = floor[above] - 0.5 if above else len(FLOORS)
    wrong = []
    for name, package in sorted(packages.items()):
        if name not in floor:
            wrong.append(f"{name} stands on no floor: give it its place in FLOORS of scripts/floors.py")
            continue
        own = floor[name]
        for other, inside in used(package, [None, "build"]):
            if not inside:
                if other not in OUTSIDE.get(name, {other}) and (other, inside) in used(package, [None]):
                    wrong.append(f"{name} uses {other}: it may use {', '.join(sorted(OUTSIDE[name]))} only")
            elif name not in (TESTS_ONLY.get(other, name), other):
                wrong.append(f"{name} uses {other}, which is for tests only: make it a dev-dependency")
            elif floor.get(other, own) >= own:
                wrong.append(f"{name} uses {other}, which does not stand below it: move what both need further down")
        wrong.extend(raw_calls(package))
    if "--print" in sys.argv[1:]:
        for names in reversed(FLOORS):
            for name in (n for n in names if n in packages):
                below = ", ".join(other for other, inside in used(packages[name], [None]) if inside)
                print(f"{name:20} {below}")
            print("-" * 20)
    for line in wrong:
        print(line)
    print(f"{len(packages)} crates on {len(FLOORS)} floors, {len(wrong)} out of place")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
