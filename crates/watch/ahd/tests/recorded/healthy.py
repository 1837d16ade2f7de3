"""Healthy programs of Python that resemble hangs, by name."""
import asyncio, multiprocessing, os, queue, socket, sqlite3, sys, threading, time

def burn(s):
    end = time.monotonic() + s; x = 0
    while time.monotonic() < end: x += sum(range(1000))

def batch():
    for _ in range(5): time.sleep(0.1)
    burn(12)

def workers():
    q = queue.Queue()
    def work():
        while True: burn(q.get())
    for _ in range(3): threading.Thread(target=work, daemon=True).start()
    for i in range(700): q.put(2.5 if i % 250 == 249 else 0.002); time.sleep(0.02)

def pool():
    with multiprocessing.Pool(2) as p: p.map(burn, [0.5] * 30)

def server(handler):
    async def main():
        s = await asyncio.start_server(handler, "127.0.0.1", int(sys.argv[2]))
        await s.serve_forever()
    asyncio.run(main())

def long_poll():
    async def handler(r, w):
        line = (await r.readline()).split()
        while (await r.readline()).strip(): pass
        await asyncio.sleep(3 if line[1] == b"/slow" else 0.01)
        w.write(b"HTTP/1.0 200 OK\r\n\r\nok"); await w.drain(); w.close()
    server(handler)

def collector():
    """Takes in and never answers."""
    s = socket.create_server(("127.0.0.1", 0))
    def take(c):
        while c.recv(4096): pass
    def send(pause):
        c = socket.create_connection(s.getsockname())
        while True: c.sendall(b"line\n" * 10); time.sleep(pause)
    for pause in (0.05, 0.3, 1.0): threading.Thread(target=send, args=(pause,), daemon=True).start()
    for _ in range(3): threading.Thread(target=take, args=(s.accept()[0],), daemon=True).start()
    time.sleep(18)

def idle_threads():
    ev = threading.Event()
    for _ in range(4): threading.Thread(target=ev.wait, daemon=True).start()
    for _ in range(5): time.sleep(3)

def sqlite_bulk():
    name = f"/tmp/.orbit-recorded-{os.getpid()}.db"
    db = sqlite3.connect(name); db.execute("create table t(x, y)")
    for i in range(60):
        db.executemany("insert into t values(?,?)", ((j, i) for j in range(20000))); db.commit()
    for _ in range(5): db.execute("select sum(a.x) from t a join t b on a.rowid = b.rowid where a.y % 7 = 1").fetchall()
    os.unlink(name)

globals()[sys.argv[1]]()
