"""Hangs as public reports describe them, by name; the reports are listed in reports.txt."""
import asyncio, ctypes, fcntl, multiprocessing, os, select, signal, socket, subprocess, sys, tempfile, threading, time

def mark():
    name = os.environ.get("HANGMARK")
    if name:
        with open(name, "a") as f: f.write(f"{time.monotonic()}\n")

# A thread writes its log under a lock that no handler makes anew in a forked child.
def fork_log():
    lock = threading.Lock()
    def logs():
        while True:
            with lock: time.sleep(0.02)
            time.sleep(0.002)
    threading.Thread(target=logs, daemon=True).start()
    for i in range(200):
        pid = os.fork()
        if pid == 0:
            if i > 60: mark()
            if i > 60 or lock.acquire(timeout=0.05):
                if i > 60: lock.acquire()
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.03)

def produces(queue):
    for _ in range(10000): queue.put([42, None, "hello"])

# The process that put things on a queue is joined before they were taken off.
def queue_join():
    queue = multiprocessing.get_context("fork").Queue()
    for _ in range(40): time.sleep(0.05)
    p = multiprocessing.get_context("fork").Process(target=produces, args=(queue,))
    p.start()
    queue.get()
    mark()
    p.join()

# Waits in the loop's own thread for a coroutine that only the loop could run.
def own_loop():
    async def answer(reader, writer):
        line = await reader.readline()
        while (await reader.readline()).strip(): pass
        if b"/hang" in line:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), asyncio.get_running_loop()).result()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        await writer.drain()
        writer.close()
    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[2]))
        await server.serve_forever()
    asyncio.run(main())

# Reads all of a child's output first, and its errors, of which there are many, afterwards.
def unread_errors():
    time.sleep(2)
    p = subprocess.Popen([sys.executable, "-c", "import sys\nfor i in range(9999): print('warning: line', i, file=sys.stderr)\nprint('done')"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    mark()
    p.stdout.read(), p.stderr.read(), p.wait()

# A daemon inherited the descriptor of the lock that the next run waits for.
def inherited_lock():
    path = tempfile.mktemp(prefix="orbit-outside-")
    first = open(path, "w")
    fcntl.flock(first, fcntl.LOCK_EX)
    subprocess.Popen(["sleep", "1000"], pass_fds=[first.fileno()])
    first.close()
    time.sleep(2)
    second = open(path, "w")
    mark()
    fcntl.flock(second, fcntl.LOCK_EX)

# The handler of a signal logs under the lock that the interrupted code holds.
def handler_logs():
    lock = threading.Lock()
    def handler(*_):
        with lock: pass
    signal.signal(signal.SIGALRM, handler)
    for i in range(200):
        with lock:
            if i == 100: mark(); signal.setitimer(signal.ITIMER_REAL, 0.05)
            time.sleep(0.02 if i < 100 else 0.2)

# A C library's thread calls back into Python under its lock, and Python calls into the library without giving the interpreter up.
def interpreter_lock():
    folder = tempfile.mkdtemp(prefix="orbit-outside-")
    with open(folder + "/l.c", "w") as f:
        f.write("""#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void (*back)(void);
static void *works(void *x) { for (;;) { pthread_mutex_lock(&m); usleep(2000); back(); pthread_mutex_unlock(&m); usleep(1000); } return x; }
void begin(void (*f)(void)) { pthread_t t; back = f; pthread_create(&t, 0, works, 0); }
void call(void) { pthread_mutex_lock(&m); pthread_mutex_unlock(&m); }
""")
    subprocess.check_call(["gcc", "-shared", "-fPIC", "-o", folder + "/l.so", folder + "/l.c", "-lpthread"])
    library = ctypes.PyDLL(folder + "/l.so")
    back = ctypes.CFUNCTYPE(None)(lambda: None)
    library.begin(back)
    time.sleep(3)
    mark()
    while True:
        library.call()
        time.sleep(0.001)

# Two services call each other and wait for the answer before they read on.
def call_each_other():
    a, b = socket.socketpair()
    def service(s, calls_at):
        n = 0
        while True:
            if n == calls_at: mark(); s.send(b"call"); wait_for(s, b"answer"); n += 1
            select.select([s], [], [], 0.05)
            n += 1
            try: data = s.recv(100, socket.MSG_DONTWAIT)
            except BlockingIOError: continue
            if data == b"call": s.send(b"answer")
    def wait_for(s, what):
        poll = select.poll(); poll.register(s, select.POLLIN)
        while True:
            poll.poll()
            # A call that comes in meanwhile is kept for later.
            if s.recv(100) == what: return
    if os.fork() == 0:
        a.close()
        service(b, 60)
    b.close()
    service(a, 60)

# The reading end of a fifo that was removed: nobody can open the other end any more.
def removed_fifo():
    path = tempfile.mktemp(prefix="orbit-outside-")
    os.mkfifo(path)
    time.sleep(2)
    threading.Timer(0.5, lambda: os.unlink(path)).start()
    mark()
    open(path).read()

# A request runs a command whose own child keeps the pipe open.
def grandchild():
    import http.server
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/hang":
                subprocess.Popen(["sh", "-c", "sleep 1000 & echo started"], stdout=subprocess.PIPE).communicate()
            self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
        def log_message(self, *_): pass
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()

# A worker process is killed while it holds the queue's lock, in the middle of a message.
def killed_reader():
    queue = multiprocessing.get_context("fork").Queue()
    def reads():
        while True: queue.get()
    workers = [multiprocessing.get_context("fork").Process(target=reads, daemon=True) for _ in range(2)]
    for w in workers: w.start()
    for _ in range(60): queue.put(1); time.sleep(0.03)
    time.sleep(0.3)
    # One of them waits in get with the lock.
    mark()
    for w in workers: os.kill(w.pid, signal.SIGKILL); w.join()
    queue.put(2)
    queue.get()

# The only worker of a pool is killed while it waits for a task: with it goes the lock that its successor needs.
def pool_worker_killed():
    pool = multiprocessing.get_context("fork").Pool(1)
    for i in range(60): pool.apply(abs, (i,)); time.sleep(0.03)
    mark()
    os.kill(pool._pool[0].pid, signal.SIGKILL)
    time.sleep(1)
    pool.apply(abs, (1,))

def serve(answer):
    async def answers(reader, writer):
        line = await reader.readline()
        while (await reader.readline()).strip(): pass
        await answer(b"/hang" in line)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        await writer.drain()
        writer.close()
    async def main():
        server = await asyncio.start_server(answers, "127.0.0.1", int(sys.argv[2]))
        await server.serve_forever()
    asyncio.run(main())

# A request takes a connection of the pool for a query, and a second one inside of it.
def nested_acquire():
    pool = asyncio.Semaphore(2)
    async def query(nested):
        async with pool:
            await asyncio.sleep(0.02)
            if nested: await query(False)
    serve(query)

# The pool's recovery takes the lock that its caller holds already.
def lock_again():
    lock = asyncio.Lock()
    async def query(recovers):
        async with lock:
            if recovers:
                async with lock: pass
    serve(query)

if __name__ == "__main__":
    globals()[sys.argv[1]]()
