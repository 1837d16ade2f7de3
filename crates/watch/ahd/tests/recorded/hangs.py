"""Programs of Python that hang, by name."""
import asyncio, concurrent.futures, os, queue, re, sqlite3, subprocess, sys, threading, time

def mark():
    name = os.environ.get("HANGMARK")
    if name:
        with open(name, "a") as f: f.write(f"{time.monotonic()}\n")

def locks():
    a, b = threading.Lock(), threading.Lock()
    def other():
        for i in range(1000):
            with b:
                if i == 150: mark()
                time.sleep(0.01)
                with a: pass
    t = threading.Thread(target=other); t.start()
    for i in range(1000):
        with a:
            if i >= 150: time.sleep(0.1); b.acquire()
        time.sleep(0.013)
    t.join()

def queues():
    q = queue.Queue()
    def worker():
        while True:
            if q.get() is None: return
    all = [threading.Thread(target=worker) for _ in range(3)]
    for t in all: t.start()
    for _ in range(100): q.put(1); time.sleep(0.02)
    mark()
    for t in all: t.join()

def pool_waits_for_itself():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    for _ in range(100): pool.submit(time.sleep, 0.01).result(); time.sleep(0.01)
    mark()
    pool.submit(lambda: pool.submit(int).result()).result()

def child_writes():
    time.sleep(2)
    p = subprocess.Popen([sys.executable, "-c", "import os,sys; os.write(1,b'x'*100); sys.stdout.write('x'*1000000)"], stdout=subprocess.PIPE)
    mark()
    p.wait()

def server(handler):
    async def main():
        s = await asyncio.start_server(handler, "127.0.0.1", int(sys.argv[2]))
        await s.serve_forever()
    asyncio.run(main())

async def read_request(r):
    line = await r.readline()
    while (await r.readline()).strip(): pass
    return line.split()[1].decode()

async def answer(w):
    w.write(b"HTTP/1.0 200 OK\r\n\r\nok"); await w.drain(); w.close()

def loop_blocked():
    async def handler(r, w):
        if await read_request(r) == "/hang": time.sleep(1000)
        await answer(w)
    server(handler)

def event_never_set():
    async def handler(r, w):
        if await read_request(r) == "/hang": await asyncio.Event().wait()
        await answer(w)
    server(handler)

def backtracks():
    async def handler(r, w):
        if await read_request(r) == "/hang": re.match(r"(a+)+$", "a" * 60 + "b")
        await answer(w)
    server(handler)

def database_locked():
    name = f"/tmp/.orbit-recorded-{os.getpid()}.db"
    one = sqlite3.connect(name, check_same_thread=False, isolation_level=None)
    one.execute("create table t(x)")
    q = queue.Queue()
    def worker():
        two = sqlite3.connect(name, timeout=10000)
        while True:
            q.get(); two.execute("insert into t values(1)"); two.commit()
    threading.Thread(target=worker, daemon=True).start()
    for _ in range(100): q.put(1); time.sleep(0.03)
    one.execute("begin exclusive"); mark(); os.unlink(name)
    while True: q.put(1); time.sleep(0.05)

globals()[sys.argv[1]]()
