# make: NAME.wasm. Needs clang and wasm-ld (Debian: clang, lld).
CLANG ?= clang

NAME.wasm: NAME.c orbit_service.h
	$(CLANG) --target=wasm32 -O2 -nostdlib -ffreestanding -Wall -Wextra -I. \
	    -Wl,--no-entry -Wl,--allow-undefined -Wl,-z,stack-size=16384 -o $@ $<

clean:
	rm -f NAME.wasm
.PHONY: clean
