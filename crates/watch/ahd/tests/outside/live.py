"""Runs programs under `orbit watch` and says what it reported: live.py ORBIT OUT [JOBS [NAME...]]

hangs: those of reports.txt; a report counts from the moment that the program, or its client, marks. healthy: programs of others, with
`--on-hang kill`. OUT gets, for each, NAME.events, and NAME.jsonl.gz, a recording with its mark. Ends what it started.
"""
import ctypes, gzip, json, os, shutil, signal, subprocess, sys, threading, time

orbit, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
jobs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
only = sys.argv[4:]
here = os.path.dirname(os.path.abspath(__file__))
client = os.path.join(here, "../recorded/client.py")
bin = os.path.join(out, "bin")
os.makedirs(bin, exist_ok=True)
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become children of this process

def built(name, *command):
    if not os.path.exists(os.path.join(bin, name)): subprocess.check_call(command, cwd=bin)

# How long a hang is watched after its mark, s; on a loaded machine a thread that spins needs longer to get the limit's worth of CPU.
AFTER = float(os.environ.get("AFTER", 18))
ports = iter(range(43100, 44000))

def descendants(root):
    below, all = {root}, []
    parents = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/stat") as f: parents[int(p)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError: pass
    grown = True
    while grown:
        new = [p for p, parent in parents.items() if parent in below and p not in below]
        grown = bool(new); below.update(new); all += new
    return all

def end(process):
    """Ends a watch and all below it."""
    left = descendants(process.pid)
    process.terminate()
    try: process.wait(3)
    except subprocess.TimeoutExpired: pass
    for pid in left + [process.pid]:
        try: os.kill(pid, signal.SIGKILL)
        except ProcessLookupError: pass
    process.wait()

def events(name):
    try:
        with open(f"{out}/{name}.events") as f: return [json.loads(line) for line in f if line.startswith("{")]
    except OSError: return []

def one(name, seconds, command, asks=None):
    files = {kind: f"{out}/{name}.{kind}" for kind in ("events", "jsonl", "mark", "log")}
    for f in files.values():
        if os.path.exists(f): os.unlink(f)
    port = next(ports)
    command = [part.replace("{port}", str(port)).replace("{out}", out).replace("{name}", name) for part in command]
    is_hang = name.startswith("hang-")
    action = [] if is_hang else ["--on-hang", "kill"]
    environment = dict(os.environ, HANGMARK=files["mark"])
    with open(files["log"], "w") as log:
        watch = subprocess.Popen([orbit, "watch", "--events", files["events"], "--record", files["jsonl"], *action, "--", *command],
                                 env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        asking = asks and subprocess.Popen(["python3", client, str(port), "3", "8" if is_hang else str(seconds - 4), *asks], env=environment,
                                           stdout=log, stderr=log)
        began, mark = time.monotonic(), None
        while watch.poll() is None and time.monotonic() < began + seconds:
            time.sleep(0.1)
            if mark is None and os.path.exists(files["mark"]):
                with open(files["mark"]) as f: mark = float((f.readline().strip() or "0")) or None
            if mark and time.monotonic() > mark + AFTER: break
        if asking: end(asking)
        is_over = watch.poll() is not None
        end(watch)
    with open(files["jsonl"], "rb") as f: lines = f.read().split(b"\n")
    lines = [line for line in lines[:-1] if line]
    last = json.loads(lines[-1])["t"]
    if mark:
        at = mark - json.loads(next(line for line in lines if b'"t0"' in line))["t0"]
        lines.append(json.dumps({"k": "mark", "t": at}).encode())
    lines.append(json.dumps({"k": "end", "t": last}).encode())
    with gzip.GzipFile(f"{out}/{name}.jsonl.gz", "wb", mtime=0) as f: f.write(b"\n".join(lines) + b"\n")
    os.unlink(files["jsonl"])
    hangs = [e for e in events(name) if e["event"] == "hang"]
    # `time_ms` counts from the beginning of the watch, which is not long before the recording's.
    offset = at * 1e3 if mark else 0
    text = [f"    {(e['time_ms'] - offset) / 1e3:6.1f} s {e['sure']:7} {e['kind']:7} {e['why'][:230]}" for e in hangs]
    killed = [e for e in events(name) if e["event"] == "action"]
    state = "no mark" if is_hang and not mark else "ended" if is_over else "lives"
    print(f"{name}: {state}, {len(hangs)} reports{', ' + str(len(killed)) + ' actions' if killed else ''}", *text, sep="\n", flush=True)

def hangs():
    if not only or any(n.startswith("hang-") for n in only):
        built("hangs", "gcc", "-O1", "-g", "-rdynamic", here + "/hangs.c", "-o", "hangs", "-lpthread", "-ldl")
        built("server-go", "go", "build", "-o", "server-go", here + "/hangs.go")
        built("Hangs.class", "javac", "-d", ".", here + "/Hangs.java")
        built("server-rs", "rustc", "-O", "-g", here + "/hangs.rs", "-o", "server-rs")
    for name in "fork_log queue_join unread_errors inherited_lock handler_logs interpreter_lock call_each_other removed_fifo killed_reader pool_worker_killed".split():
        yield f"hang-o_py_{name}", 45, ["python3", here + "/hangs.py", name], None
    for name in "handler_localtime pool_destructor all_write closed_peer no_descriptor loader_lock handler_malloc dead_worker once_in_handler handler_channel exit_yields".split():
        yield f"hang-o_c_{name}", 45, [bin + "/hangs", name], None
    server = {"py_own_loop": ["python3", here + "/hangs.py", "own_loop", "{port}"],
              **{"py_" + name: ["python3", here + "/hangs.py", name, "{port}"] for name in ("grandchild", "nested_acquire", "lock_again")},
              "rs_printed": [bin + "/server-rs", "{port}"]}
    for name in "read_lock send_under_lock pool_exhausted write_under_lock".split(): server["go_" + name] = [bin + "/server-go", "{port}", name]
    for name in "atomics own_request backtracks no_end parser".split(): server["node_" + name] = ["node", here + "/hangs.js", "{port}", name]
    for name in "pool monitors cycle joins callback".split(): server["java_" + name] = ["java", "-cp", bin, "Hangs", "{port}", name]
    for name, command in server.items(): yield "hang-o_" + name, 60, command, ["/", "/hang"]

def healthy():
    if not only or any("gate" in n for n in only): built("gates", "gcc", "-O1", "-g", here + "/gates.c", "-o", "gates", "-lpthread")
    shell = lambda text: ["sh", "-c", text]
    go, java, node = ([bin + "/server-go", "{port}", "none"], ["java", "-cp", bin, "Hangs", "{port}", "none"], ["node", here + "/hangs.js", "{port}", "none"])
    tree = os.path.realpath(os.path.join(here, "../../../../.."))
    programs = {
        "cargo_build": shell(f"rm -rf {{out}}/rs && mkdir {{out}}/rs && cd {{out}}/rs && cargo init -q --name x --vcs none . && "
                             "python3 -c \"print('fn main(){'+''.join(f'println!(\\\"{{}}\\\",f{i}(1));' for i in range(400))+'}'+''.join(f'fn f{i}(x:u64)->u64{{(0..x).map(|y|y*{i}).sum()}}' for i in range(400)))\" > src/main.rs && cargo build -q --release --offline"),
        "rustc": shell(f"cd {{out}}; for i in 1 2 3; do rustc -O -C codegen-units=1 {here}/hangs.rs -o rs.out; done"),
        "go_build": shell(f"cd {{out}}; GOFLAGS=-a go build -o go.out {here}/hangs.go"),
        "go_vet": shell(f"cd {here}; GOCACHE={{out}}/gocache go vet hangs.go"),
        "javac": shell(f"mkdir -p {{out}}/cls; for i in 1 2 3 4 5 6 7 8; do javac -d {{out}}/cls {here}/Hangs.java ../recorded/Server.java 2>/dev/null; javac -d {{out}}/cls {here}/Hangs.java; done"),
        "jshell": shell("echo 'long s=0; for(long i=0;i<4000000000L;i++) s+=i; System.out.println(s);' | jshell -s -"),
        "make": shell(f"mkdir -p {{out}}/mk; cd {{out}}/mk; printf 'all: a b c d\\n%%: FORCE\\n\\tgcc -O3 -c {here}/hangs.c -o $@.o; sleep 1; gcc -O2 -c {here}/../recorded/hangs.c -o $@.o\\nFORCE:\\n' > Makefile; make -j3 -s"),
        "pip": shell("rm -rf {out}/venv; python3 -m venv {out}/venv && {out}/venv/bin/python -m pip list --disable-pip-version-check"),
        "apt_cache": shell("apt-cache dump | wc -l; apt-cache search lib | sort | wc -l; dpkg -l | wc -l"),
        "git_log": shell(f"cd {tree}; git log --stat -n 300 | wc -l; git grep -c unsafe | wc -l; git status --short | wc -l; git fsck --no-dangling 2>/dev/null | tail -1"),
        "rsync": shell("rm -rf {out}/rsync; mkdir {out}/rsync; rsync -a /usr/share/doc /usr/include {out}/rsync/; rsync -ac /usr/share/doc /usr/include {out}/rsync/; du -s {out}/rsync; rm -rf {out}/rsync"),
        "xz_pipe": shell("tar c /usr/include 2>/dev/null | xz -6 | xz -d | tar t | wc -l"),
        "perl": ["perl", "-e", "my %h; for my $i (1..6000000) { $h{$i % 200003} .= chr(65 + $i % 26) if $i % 3 } print scalar(keys %h), \"\\n\"; sleep 8"],
        "find_xargs": shell("find /usr/lib /usr/share -type f -size -64k -print0 2>/dev/null | xargs -0 -P 2 -n 200 sha256sum | sort | tail -1"),
        "gdb_batch": shell(f"gdb -q -batch -ex 'info functions' {bin}/server-go | wc -l"),
        "py_server_idle": ["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1"],
        "node_npm": shell("npm --version; npm config ls -l | wc -l; node -e 'let s=0; for (let i=0;i<6e9;i++) s+=i; console.log(s)'"),
        "dbus_idle": ["dbus-daemon", "--session", "--nofork", "--print-address"],
        "redis_bench": shell("redis-server --port {port} --save '' --dir {out} >/dev/null & sleep 1; redis-benchmark -p {port} -q -n 100000 -P 8 -t set,get,lrange_100 >/dev/null; redis-cli -p {port} debug sleep 3; sleep 5; kill $!"),
        "stress_vm": ["stress-ng", "--vm", "1", "--vm-bytes", "64m", "--fork", "1", "--sem", "1", "--msg", "1", "--timeout", "14", "-q"],
    }
    # Servers that read a request and do not answer it for long, as they are asked to.
    redis = "redis-server --port {port} --save '' --dir {out} >/dev/null & r=$!; sleep 1; "
    pg = ("rm -rf {out}/{name}; mkdir {out}/{name}; chown nobody {out}/{name}; p=$(ls -d /usr/lib/postgresql/*/bin | tail -1); as='setpriv --reuid nobody --clear-groups'; "
          "$as $p/initdb -A trust -D {out}/{name}/d >/dev/null; $as $p/postgres -D {out}/{name}/d -p {port} -c unix_socket_directories={out}/{name} & r=$!; sleep 3; "
          "q() { $p/psql -qAt -h 127.0.0.1 -p {port} -U nobody postgres \"$@\"; }; ")
    programs |= {
        "redis_blpop": shell(redis + "for i in $(seq 60); do redis-cli -p {port} set a $i; done >/dev/null; for i in 1 2 3; do redis-cli -p {port} blpop q$i 0 & done; sleep 24; kill $r"),
        "redis_subscribe": shell(redis + "for i in $(seq 60); do redis-cli -p {port} set a $i; done >/dev/null; for i in 1 2 3; do timeout 24 redis-cli -p {port} subscribe c$i >/dev/null & done; sleep 24; kill $r"),
        "redis_stream": shell(redis + "for i in $(seq 60); do redis-cli -p {port} xadd s '*' a $i; done >/dev/null; for i in 1 2; do redis-cli -p {port} xread block 23000 streams s '$' & done; sleep 24; kill $r"),
        "postgres_sleep": shell(pg + "for i in $(seq 60); do q -c 'select 1'; done >/dev/null; q -c 'select pg_sleep(20)' & q -c 'select pg_sleep(20)'; kill -INT $r; wait"),
        "postgres_row_lock": shell(pg + "q -c 'create table t(a int)' -c 'insert into t values(1)'; for i in $(seq 40); do q -c 'update t set a=a+1'; done; "
                                   "(echo 'begin; update t set a=0;'; sleep 18; echo 'commit;') | q & sleep 0.5; q -c 'update t set a=1' & q -c 'update t set a=2'; kill -INT $r; wait"),
        "apache_long_poll": shell("mkdir -p {out}/{name}/cgi; cd {out}/{name}; printf '#!/bin/sh\\nsleep 18\\necho\\necho late\\n' > cgi/late; chmod 755 cgi/late; echo hello > index.html; m=/usr/lib/apache2/modules; "
                                  "printf \"ServerName x\\nListen 127.0.0.1:{port}\\nPidFile $PWD/pid\\nErrorLog $PWD/log\\nDocumentRoot $PWD\\nLoadModule mpm_event_module $m/mod_mpm_event.so\\n"
                                  "LoadModule authz_core_module $m/mod_authz_core.so\\nLoadModule alias_module $m/mod_alias.so\\nLoadModule cgid_module $m/mod_cgid.so\\nScriptSock $PWD/sock\\nScriptAlias /cgi/ $PWD/cgi/\\n\" > conf; "
                                  "apache2 -f $PWD/conf -DFOREGROUND & r=$!; sleep 2; for i in $(seq 80); do curl -s http://127.0.0.1:{port}/; done >/dev/null; for i in 1 2 3; do curl -s http://127.0.0.1:{port}/cgi/late & done; sleep 22; kill $r"),
        "memcached_idle": shell("memcached -l 127.0.0.1 -p {port} -u nobody & r=$!; sleep 1; (for i in $(seq 100); do printf 'set a 0 0 1\\r\\nb\\r\\n'; sleep 0.02; done; sleep 20) | socat - TCP:127.0.0.1:{port} >/dev/null; kill $r"),
        "haproxy_slow": shell("mkdir -p {out}/{name}; cd {out}/{name}; printf 'defaults\\n mode http\\n timeout client 60s\\n timeout server 60s\\n timeout connect 5s\\nlisten x\\n bind 127.0.0.1:{port}\\n server s unix@%s/s.sock\\n' $PWD > conf; "
                              "python3 -c \"import http.server,socketserver,time\nclass H(http.server.BaseHTTPRequestHandler):\n def address_string(self): return 'x'\n def do_GET(self):\n  time.sleep(18 if self.path=='/late' else 0); self.send_response(200); self.end_headers(); self.wfile.write(b'ok')\n"
                              "class S(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): pass\nS('$PWD/s.sock', H).serve_forever()\" 2>/dev/null & haproxy -f conf & r=$!; sleep 2; for i in $(seq 80); do curl -s http://127.0.0.1:{port}/; done >/dev/null; "
                              "for i in 1 2; do curl -s http://127.0.0.1:{port}/late & done; sleep 20; kill $r %1"),
        "py_until_term": ["python3", "-c", "import signal, threading; e = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: e.set()); e.wait()"],
        "flock_jobs": shell("for i in 1 2; do flock {out}/{name}.lock sleep 9 & done; wait"),
        "py_pool_idle": ["python3", "-c", "import multiprocessing, queue, threading, http.server as h\n"
                         "pool = multiprocessing.get_context('fork').Pool(2)\nfor i in range(60): pool.apply(abs, (i,))\n"
                         "threading.Thread(target=h.HTTPServer(('127.0.0.1', int('{port}')), h.SimpleHTTPRequestHandler).serve_forever).start()\nqueue.Queue().get()"],
        "xz_blocks": shell("tar c /usr/lib 2>/dev/null | head -c 90M | xz -T2 -6 | wc -c"),
        "node_worker": ["node", "-e", "const { Worker } = require('worker_threads');\n"
                        "const w = new Worker(\"const { parentPort: p } = require('worker_threads'); p.on('message', n => { const end = Date.now() + n; while (Date.now() < end); p.postMessage(n); })\", { eval: true });\n"
                        "let n = 0; w.on('message', () => { n++; if (n < 100) w.postMessage(20); else if (n == 100) w.postMessage(12000); else process.exit(); }); w.postMessage(20);"],
        "py_executor": ["python3", "-c", "import hashlib, concurrent.futures as f\ne = f.ThreadPoolExecutor(2)\nwork = lambda n: hashlib.pbkdf2_hmac('sha256', b'a', b'b', n)\n"
                        "for i in range(100): e.submit(work, 20000).result()\ne.submit(work, 12000000).result()"],
        # Locks that another thread unlocks than the one that locked them: gates, by mutex.
        "gate": [bin + "/gates", "one"], "gate_two": [bin + "/gates", "two"], "gate_left": [bin + "/gates", "left"], "gate_slow": [bin + "/gates", "slow"],
    }
    programs |= {
        "pgbench": shell(pg + "$p/pgbench -qi -s 2 -h 127.0.0.1 -p {port} -U nobody postgres; $p/pgbench -T 14 -c 4 -j 2 -h 127.0.0.1 -p {port} -U nobody postgres; kill -INT $r; wait"),
        "sqlite_writers": shell("rm -f {out}/{name}.db; w() { for i in $(seq 400); do sqlite3 -cmd '.timeout 20000' {out}/{name}.db 'create table if not exists t(a); insert into t values(1);'; done; }; w & w & w & wait"),
        "dhparam": shell("openssl dhparam -out {out}/{name}.pem 2048 2>/dev/null; openssl genrsa 8192 2>/dev/null | wc -c"),
        "sort_parallel": shell("seq 1 9000000 | sort --parallel=2 -S 40M -T {out} -r | uniq | md5sum"),
        "bzip2_pipe": shell("tar c /usr/lib 2>/dev/null | head -c 60M | bzip2 -9 | bzip2 -d | md5sum"),
        "jshell_parallel": shell("echo 'System.out.println(java.util.stream.LongStream.range(0, 6000000000L).parallel().filter(x -> x % 7 == 3).count());' | jshell -s -"),
        "asyncio_idle": shell("python3 {here}/hangs.py lock_again {port} & r=$!; sleep 2; for i in $(seq 80); do curl -s http://127.0.0.1:{port}/; done >/dev/null; sleep 20; kill $r".replace("{here}", here)),
        "socat_echo": shell("socat TCP-LISTEN:{port},bind=127.0.0.1,fork EXEC:cat & r=$!; sleep 1; (for i in $(seq 90); do echo $i; sleep 0.05; done; sleep 18) | socat - TCP:127.0.0.1:{port} >/dev/null; kill $r"),
        "ssh_keygen": shell("cd {out}; rm -f {name}.key*; ssh-keygen -q -t rsa -b 8192 -N '' -f {name}.key; ssh-keygen -q -t ed25519 -a 3000 -N secret -f {name}.key2"),
    }
    for name, command in programs.items(): yield "healthy-o_" + name, 34, command, None
    for name, command in {"go_server": go, "java_server": java, "node_server": node}.items(): yield "healthy-o_" + name, 20, command, ["/"]

waiting = [case for case in [*hangs(), *healthy()] if not only or any(case[0].startswith(n) for n in only)]
lock = threading.Lock()
def work():
    while True:
        with lock:
            if not waiting: return
            case = waiting.pop(0)
        if not shutil.which(case[2][0]): print(f"SKIP: {case[0]} needs {case[2][0]}"); continue
        try: one(*case)
        except Exception as e: print(f"{case[0]}: {type(e).__name__} {e}", flush=True)
threads = [threading.Thread(target=work) for _ in range(jobs)]
for t in threads: t.start()
for t in threads: t.join()
