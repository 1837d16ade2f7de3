# The front door. `make help` lists what there is; every target installs the system packages it needs (as root or by sudo,
# naming them first) and says so.

PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: help demo cast docs check test test-full outside bench lint lab build static image deb install clean

help:
	@echo 'make demo       a tour: a crash contained, a deadlock explained; two minutes'
	@echo 'make cast       draws the tour as docs/demo.svg, from a run'
	@echo 'make docs       checks the links of all documents; makes the book in target/book, where mdBook is installed'
	@echo 'make build      the library, the C library and the orbit command, into target/release'
	@echo 'make static     the orbit command as one file that needs no other, target/static/orbit, tried in an empty root'
	@echo 'make image      an image of that for container runtimes, target/static/orbit-image.tar'
	@echo 'make deb        a Debian package of the command, target/deb/orbit_VERSION_ARCH.deb, tried in a folder that serves as a root'
	@echo 'make check      formatting, floors, unit tests and one test of each kind: the loop of a developer, about three minutes'
	@echo 'make test       every test; the last line is: N passed, N failed, N skipped'
	@echo 'make test-full  the same with longer campaigns and fuzzing; SPECIFICATION.md says which are commands of their own'
	@echo 'make outside    other people\''s programs under each command, compared with a run without; writes docs/compatibility.md'
	@echo 'make lint       formatting, floors, links, clippy, licences, rustdoc, C examples, shell scripts'
	@echo 'make bench      measurements (minutes; leave the machine alone meanwhile)'
	@echo 'make lab        in a virtual machine with the 6.1 kernel of Debian 12: the tests of the library, and CPUs made to hang'
	@echo 'make install    into $$(DESTDIR)$$(PREFIX), now $(DESTDIR)$(PREFIX)'
	@echo 'make clean      removes what was built'

demo:
	@scripts/packages.sh build demo
	@scripts/demo.sh

cast:
	@scripts/packages.sh build demo
	@scripts/cast.py

docs:
	@scripts/links.py
	@if command -v mdbook >/dev/null; then rm -rf target/book-source && scripts/links.py --book target/book-source && cargo build --release -p orbit-cli && scripts/reference.py --book target/book-source target/release/orbit && mdbook build target/book-source --dest-dir "$(CURDIR)/target/book"; else echo 'no book: needs mdbook (cargo install mdbook)'; fi

check:
	@scripts/check.sh

test:
	@scripts/test.sh

test-full:
	@ORBIT_TEST_FULL=1 scripts/test.sh

outside:
	@scripts/packages.sh build
	@outside/run.py --install
	cargo build --release -p orbit-cli
	@outside/faults.py --json target/outside-faults.jsonl
	@outside/run.py --json target/outside.jsonl --faults target/outside-faults.jsonl --page docs/compatibility.md

bench:
	@scripts/bench.sh

lint:
	@scripts/lint.sh

lab:
	@scripts/old-kernel.sh
	@scripts/lab.sh

build:
	@scripts/packages.sh build
	cargo build --release --workspace

static:
	@scripts/static.sh

image: static
	@scripts/image.py target/static/orbit target/static/orbit-image.tar

deb:
	@scripts/deb.sh

install:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

clean:
	cargo clean
