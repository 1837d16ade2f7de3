//! Programs are entered and left again and again while they work, by a tracer that is killed at
//! random times: what each prints, and how it ends, is what it is when nobody enters it.

mod common;

use common::{Dir, full, have, may_trace};
use graft::{Error, Process, Protection, Source};
use orbit_testing::Random;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PYTHON: &str = "
import hashlib, threading, time
sums = {}
def work(n):
    data = b'x' * 65536
    for i in range(40):
        data = hashlib.sha256(data + bytes([n, i])).digest() * 2048
        time.sleep(0.001)
    sums[n] = hashlib.sha256(data).hexdigest()
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print([sums[n] for n in range(8)])
";

const NODE: &str = "
const crypto = require('crypto');
const results = [];
let left = 4;
function step(n, rounds, data) {
    if (rounds > 0)
        return crypto.pbkdf2(data, 'salt', 2000, 32, 'sha256', (error, next) => setTimeout(step, 1, n, rounds - 1, next));
    results[n] = data.toString('hex');
    if (--left === 0) console.log(results.join(' '));
}
for (let n = 0; n < 4; n++) step(n, 20, Buffer.from('x' + n));
";

const PERL: &str = "my $s = 1; for my $i (1 .. 1500000) { $s = ($s * 1103515245 + $i) % 2147483648; \
     select(undef, undef, undef, 0.001) if $i % 50000 == 0 } print \"$s\\n\";";

const OPENSSL: [&str; 11] =
    ["enc", "-aes-256-cbc", "-pbkdf2", "-iter", "700000", "-k", "x", "-S", "0102030405060708", "-in", "/dev/null"];

/// Sorts of a shell pipeline: several processes, of which the shell is entered.
const SHELL: &str = "i=0; while [ $i -lt 12 ]; do seq 1 20000 | sort -R --random-source=/bin/sh | md5sum; \
     sleep 0.01; i=$((i + 1)); done";

fn commands(dir: &Dir) -> Vec<(&'static str, Command)> {
    let mut all = Vec::new();
    let mut add = |name, program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        all.push((name, command));
    };
    add("500 threads", &dir.build("cc", "many.c", &[]), &["500", "10"]);
    add("static", &dir.build("cc", "many.c", &["-static"]), &["20", "100"]);
    for (name, program, arguments) in [
        ("shell", "sh", vec!["-c", SHELL]),
        ("python", "python3", vec!["-c", PYTHON]),
        ("node", "node", vec!["-e", NODE]),
        ("perl", "perl", vec!["-e", PERL]),
        ("openssl", "openssl", OPENSSL.to_vec()),
        (
            "sqlite",
            "sqlite3",
            vec![
                ":memory:",
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
             WHERE i < 900000) SELECT sum(i * i % 1009), count(*) FROM n",
            ],
        ),
        ("awk", "awk", vec!["BEGIN { for (i = 0; i < 3000000; i++) s = (s * 31 + i) % 1000003; print s }"]),
    ] {
        if have(program) {
            add(name, Path::new(program), &arguments);
        }
    }
    if have("go") {
        let program = dir.0.join("batch");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/batch.go"));
        build.env("GO111MODULE", "off").env("GOFLAGS", "");
        build.env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"));
        assert!(build.status().expect("go").success());
        add("go", &program, &[]);
    }
    if have("java") && have("javac") {
        let source = dir.0.join("Batch.java");
        std::fs::write(&source, JAVA).expect("a file");
        assert!(Command::new("javac").arg("-d").arg(dir.0.path()).arg(&source).status().expect("javac").success());
        add("java", Path::new("java"), &["-cp", &dir.0.path().display().to_string(), "Batch"]);
    }
    all
}

const JAVA: &str = "
import java.util.stream.*;
public class Batch {
    public static void main(String[] a) throws Exception {
        long sum = 0;
        for (int round = 0; round < 30; round++) {
            sum += IntStream.range(0, 20000).parallel().mapToObj(i -> \"x\" + i).mapToLong(String::hashCode).sum();
            Thread.sleep(2);
        }
        System.out.println(sum);
    }
}
";

/// What the tracer does to the program with this id.
fn session(pid: i32) -> Result<(), Error> {
    let process = Process::find(pid)?;
    process.while_stopped(|stopped| -> Result<(), Error> {
        stopped.call(libc::SYS_getpid, [0; 6])?;
        stopped.map(None, 8192, Protection::READ_EXECUTE, Source::Bytes(&[0xc3; 5000]))?;
        stopped.take_from(libc::SYS_eventfd2, [5, 0, 0, 0, 0, 0])?;
        Ok(())
    })
}

/// Not a test of its own: the tracer. Says for each session whether it entered the program.
#[test]
fn helper() {
    let Some(pid) = std::env::var("GRAFT_TEST_PID").ok().and_then(|pid| pid.parse().ok()) else { return };
    let mut go = [0u8];
    let mut out = std::io::stdout();
    while std::io::stdin().read_exact(&mut go).is_ok() {
        let entered = session(pid).is_ok();
        if out.write_all(if entered { b"+" } else { b"-" }).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Enters a program until it has ended, with tracers of which each is killed at some time; returns
/// what it printed, how often it was entered, and how many tracers were killed.
fn entered(command: &mut Command, random: &mut Random) -> (Output, usize, usize) {
    let program = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let pid = program.id();
    let output = std::thread::spawn(move || program.wait_with_output().expect("its end"));
    let (mut sessions, mut kills) = (0, 0);
    while !output.is_finished() {
        let mut tracer = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "helper", "--nocapture"])
            .env("GRAFT_TEST_PID", pid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a tracer");
        let (mut input, mut said) = (tracer.stdin.take().expect("a pipe"), tracer.stdout.take().expect("a pipe"));
        // Sessions in a row; the last one is cut short.
        let rounds = random.below(6);
        let answers = std::thread::spawn(move || {
            let (mut count, mut byte) = (0, [0u8]);
            while said.read_exact(&mut byte).is_ok() {
                count += usize::from(byte == *b"+");
            }
            count
        });
        for _ in 0..rounds {
            if output.is_finished() || input.write_all(b"g").is_err() {
                break;
            }
            std::thread::sleep(Duration::from_micros(random.below(4000)));
        }
        let _ = input.write_all(b"g");
        std::thread::sleep(Duration::from_micros(random.below(5000)));
        kills += usize::from(tracer.try_wait().expect("its state").is_none());
        tracer.kill().expect("killed");
        tracer.wait().expect("its end");
        sessions += answers.join().expect("counted");
    }
    (output.join().expect("its output"), sessions, kills)
}

#[test]
fn what_programs_print_is_what_it_is_without() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("campaign");
    let mut random = Random::from_environment();
    // 1,000 sessions a program, in full.
    let least = if full() { 1000 } else { 10 };
    let until = Duration::from_secs(if full() { 3600 } else { 20 });
    let (mut all_sessions, mut all_kills) = (0, 0);
    for (name, mut command) in commands(&dir) {
        let alone = command.stdin(Stdio::null()).output().expect("it runs");
        let (began, mut sessions, mut kills, mut runs) = (Instant::now(), 0, 0, 0);
        while runs == 0 || (sessions < least && began.elapsed() < until) {
            let (output, more, killed) = entered(&mut command, &mut random);
            (sessions, kills, runs) = (sessions + more, kills + killed, runs + 1);
            let what = |output: &Output| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (output.status, text(&output.stdout), text(&output.stderr))
            };
            assert_eq!(what(&output), what(&alone), "{name}, entered {sessions} times, {kills} tracers killed");
        }
        println!("{name}: {runs} runs, entered {sessions} times, {kills} tracers killed");
        (all_sessions, all_kills) = (all_sessions + sessions, all_kills + kills);
    }
    assert!(all_sessions >= 20 && all_kills >= 5, "entered {all_sessions} times, {all_kills} tracers killed");
}
