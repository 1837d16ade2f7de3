#!/bin/sh
# Makes the recordings of this folder's programs anew: record_all.sh RECORDER OUT [NAME...]
#
# RECORDER is the example `record` of this crate. Needs gcc, python3, node, go, javac, redis, nginx, openssl, zstd, sqlite3 and git; a
# program that is missing leaves its recordings out. Each is read over before it becomes a fixture.
set -u
here=$(cd "$(dirname "$0")" && pwd)
recorder=$1 out=$2
shift 2
only=" $* "
bin=$out/bin
mkdir -p "$bin"
gcc -O1 -g "$here/hangs.c" -o "$bin/hangs" -lpthread
gcc -O1 -g "$here/healthy.c" -o "$bin/healthy" -lpthread
[ -x "$bin/server" ] || (cd "$here" && go build -o "$bin/server" server.go)
[ -f "$bin/Server.class" ] || javac -d "$bin" "$here/Server.java"
next=42000

# one NAME SECONDS PROGRAM ARGUMENT...
one() {
    name=$1 seconds=$2
    shift 2
    case $only in "  " | *" $name "*) ;; *) return ;; esac
    command -v "$1" >/dev/null || { echo "SKIP: $name needs $1"; return; }
    "$recorder" "$out/$name.jsonl" "$seconds" "${AFTER:-16}" -- "$@" >"$out/$name.log" 2>&1 </dev/null &
    running=$((running + 1))
    [ $running -lt "${JOBS:-4}" ] || { wait; running=0; }
}
running=0

# served NAME PATH HANGS SECONDS SERVER...: with {} for its port
served() {
    name=$1 path=$2 hangs=$3 seconds=$4
    shift 4
    next=$((next + 1))
    command=$(echo "$*" | sed "s/{}/$next/g")
    one "$name" "$((seconds + 25))" sh -c "$command & python3 $here/client.py $next 3 $seconds $path $hangs; kill \$!"
}

for name in abba abba_joined joins wake_up_lost twice keeps_lock holder_ended semaphore barrier_short epoll_spin yield_spin both_write both_read own_pipe \
    file_locks reads_again fork_lock; do
    one "hang-c_$name" 40 "$bin/hangs" $name
done
for name in locks queues pool_waits_for_itself child_writes database_locked; do
    one "hang-py_$name" 40 python3 "$here/hangs.py" $name
done
for name in loop_blocked event_never_set backtracks; do
    served "hang-py_$name" / /hang 4 "python3 $here/hangs.py $name {}"
done
served hang-node_spin / /hang 4 "node $here/server.js {} spin"
served hang-node_lost / /hang 4 "node $here/server.js {} lost"
served hang-go_locks / /hang 4 "$bin/server {} locks"
served hang-go_channel / /hang 4 "$bin/server {} channel"
served hang-java_monitor / /hang 5 "java -cp $bin Server {} monitor"
served hang-java_spin / /hang 5 "java -cp $bin Server {} spin"

for name in poll_compute long_jobs convoys timers idle_pool slow_pair leader first_ended until_signal; do
    one "healthy-c_$name" 20 "$bin/healthy" $name
done
for name in batch workers pool collector idle_threads sqlite_bulk; do
    one "healthy-py_$name" 20 python3 "$here/healthy.py" $name
done
served healthy-py_long_poll /slow "" 14 "python3 $here/healthy.py long_poll {}"
served healthy-node_slow /slow "" 14 "node $here/server.js {} none"
served healthy-node_fast / "" 10 "node $here/server.js {} none"
served healthy-go_slow /slow "" 14 "$bin/server {} none"
served healthy-go_fast / "" 10 "$bin/server {} none"
served healthy-java_slow /slow "" 14 "java -cp $bin Server {} none"
one healthy-java_batch 20 java -cp "$bin" Server batch
one healthy-tar_gzip 16 sh -c 'tar c /usr/share /usr/lib 2>/dev/null | gzip -9 | wc -c'
one healthy-zstd 16 sh -c 'tar c /usr/lib 2>/dev/null | zstd -15 -T2 | wc -c'
one healthy-gcc 20 sh -c "cd $out && for i in 1 2 3 4; do gcc -O3 -fwhole-program -c $here/hangs.c -o x.o; done; python3 -c 'print(\"int f(int x){\"+\"\".join(f\"x=x*{i}+(x>>{i%30});if(x&{i})x^={i};\" for i in range(9000))+\"return x;}\")' > big.c; gcc -O2 -c big.c -o big.o"
one healthy-sort_pipe 16 sh -c 'seq 1 6000000 | sort -r | uniq | tail -1; sleep 3'
one healthy-sleep_pipe 14 sh -c 'sleep 12 | cat'
one healthy-openssl 14 openssl speed -seconds 2 sha256
one healthy-git 16 sh -c "rm -rf $out/clone; git clone -q --bare file://$(git -C "$here" rev-parse --show-toplevel) $out/clone; cd $out/clone && git repack -adfq; git count-objects -v; sleep 2"
one healthy-sqlite_shell 16 sqlite3 :memory: "create table t(x); with recursive c(x) as (select 1 union all select x+1 from c where x<8000000) insert into t select x from c; select count(*) from t a where x % 13 = 5; select sum(x*x) from t;"
one healthy-bash_loop 14 sh -c 'for i in 1 2 3 4 5 6; do grep -r zzqq /usr/include >/dev/null; sleep 1; done'
one healthy-redis_bursts 16 sh -c "redis-server --port 41999 --save '' --dir $out >/dev/null & sleep 1; for i in 1 2 3; do redis-benchmark -p 41999 -q -n 60000 -c 20 -t set,lpush >/dev/null; sleep 3; done; kill \$!"
one healthy-redis_subscribers 16 sh -c "redis-server --port 41998 --save '' --dir $out >/dev/null & sleep 1; (redis-cli -p 41998 subscribe a & redis-cli -p 41998 subscribe b & redis-cli -p 41998 blpop q 0 &) >/dev/null; sleep 12; kill \$!"
one healthy-stress 14 stress-ng --cpu 1 --io 1 --pipe 1 --futex 1 --timer 1 --timeout 10 -q
wait
rm -f "$out"/big.[co] "$out"/x.o /tmp/.orbit-recorded-*
