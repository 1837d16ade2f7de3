#!/usr/bin/env python3
"""Makes an image of the orbit command for container runtimes: one static file and nothing else. Needs no runtime and no root.

    scripts/image.py ORBIT TO.tar       `make image` runs it with what `make static` has built

ORBIT is a static file. TO.tar is an OCI image layout: `podman load -i`, `ctr images import`, `docker load -i` (25 and later) and
`skopeo copy oci-archive:` read it. The same file gives the same bytes. Prints the image's digest and size.
"""

import gzip
import hashlib
import io
import json
import pathlib
import re
import sys
import tarfile

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
MACHINES = {62: "amd64", 183: "arm64"}


def version():
    """The version of the workspace."""
    text = (pathlib.Path(__file__).parent.parent / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', text, re.M).group(1)


def machine(program):
    """What a static ELF file runs on; another file ends the script."""
    is_elf = program[:6] == b"\x7fELF\x02\x01"
    name = MACHINES.get(int.from_bytes(program[18:20], "little")) if is_elf else None
    if name is None:
        sys.exit("image.py: this is no ELF file for amd64 or arm64")
    start, size, count = (int.from_bytes(program[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    kinds = [int.from_bytes(program[start + i * size :][:4], "little") for i in range(count)]
    if 3 in kinds:
        sys.exit("image.py: this file needs a loader: build it by `make static`")
    return name


def layer(program):
    """The only layer: the command, and the folders that it writes to."""
    to = io.BytesIO()
    with tarfile.open(fileobj=to, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode in (("etc", 0o755), ("run", 0o755), ("tmp", 0o1777), ("var", 0o755), ("var/lib", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        entry = tarfile.TarInfo("orbit")
        entry.mode, entry.size = 0o755, len(program)
        tar.addfile(entry, io.BytesIO(program))
    return to.getvalue()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program = pathlib.Path(sys.argv[1]).read_bytes()
    blobs = {}

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    plain = layer(program)
    packed = io.BytesIO()
    # Without time and name: the same bytes each time.
    with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as to:
        to.write(plain)
    config = {
        "architecture": machine(program),
        "os": "linux",
        "config": {"Entrypoint": ["/orbit"], "Env": ["PATH=/"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(json.dumps(config).encode(), CONFIG),
        "layers": [blob(packed.getvalue(), LAYER)],
    }
    listed = blob(json.dumps(manifest).encode(), MANIFEST)
    name = f"orbit:{version()}"
    # Podman and Docker take the first for the name, containerd the second.
    listed["annotations"] = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": f"docker.io/library/{name}"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [listed]}
    files = {"oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(), "index.json": json.dumps(index).encode()}
    files |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    with tarfile.open(sys.argv[2], "w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    print(f"{name} {listed['digest']} {pathlib.Path(sys.argv[2]).stat().st_size} bytes")


main()
