# make: NAME.wasm. Needs asc: npm install -g assemblyscript.
ASC ?= asc

NAME.wasm: index.ts
	$(ASC) index.ts --outFile $@ --optimize --runtime stub --use abort=

clean:
	rm -f NAME.wasm
.PHONY: clean
