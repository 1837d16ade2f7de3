"""Sends requests to a server of this machine: client.py PORT THREADS SECONDS PATH [HANGS]. After SECONDS it marks and asks for HANGS."""
import os, socket, sys, threading, time

port, threads, seconds, path = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
hangs = sys.argv[5] if len(sys.argv) > 5 else None

def ask(path):
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        while s.recv(65536):
            pass

def wait_for_server():
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)

def loop():
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ask(path)
        time.sleep(0.03)

wait_for_server()
all = [threading.Thread(target=loop) for _ in range(threads)]
for t in all: t.start()
for t in all: t.join()
if hangs:
    name = os.environ.get("HANGMARK")
    if name:
        with open(name, "a") as f: f.write(f"{time.monotonic()}\n")
    for _ in range(2):
        threading.Thread(target=ask, args=(hangs,), daemon=True).start()
    time.sleep(60)
