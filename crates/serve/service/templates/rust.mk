# make: NAME.wasm. Needs rustup target add wasm32-unknown-unknown.
CARGO ?= cargo

NAME.wasm: lib.rs Cargo.toml
	RUSTFLAGS="-Clink-arg=-zstack-size=16384" CARGO_TARGET_DIR=target \
	    $(CARGO) build --release --target wasm32-unknown-unknown
	cp target/wasm32-unknown-unknown/release/$(subst -,_,NAME).wasm $@

clean:
	rm -rf target NAME.wasm
.PHONY: clean
