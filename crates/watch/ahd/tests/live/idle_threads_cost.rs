//! A healthy program of which hundreds or thousands of threads only wait, each in its way, costs
//! the watcher less than MOST of a CPU: to judge a wait costs no scan of all processes, nor one of
//! all threads. 1 to 2 % is usual; a loaded machine makes it more.
//!
//! The test starts itself again as the program.

use crate::common::{PATIENCE, Program, Watcher, cpu};
use orbit_ahd::Config;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

const WAY: &str = "ORBIT_AHD_TEST_IDLE_THREADS";
const MOST: f64 = 0.10;

type Jobs = (Mutex<u32>, Condvar);

/// At a connection of its own.
fn receives(_: &Jobs, ready: &Barrier) {
    let (mut here, _there) = UnixStream::pair().expect("sockets");
    ready.wait();
    let _ = here.read(&mut [0]);
}

/// For a job.
fn waits(jobs: &Jobs, ready: &Barrier) {
    ready.wait();
    let mut any = jobs.0.lock().expect("a lock");
    while *any == 0 {
        any = jobs.1.wait(any).expect("a wait");
    }
}

/// Takes turns with the others at the connections that come.
fn takes_turns(_: &Jobs, ready: &Barrier) {
    struct Turn(std::cell::UnsafeCell<libc::pthread_mutex_t>);
    // SAFETY: a mutex is made to be shared.
    unsafe impl Sync for Turn {}
    static TURN: Turn = Turn(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
    ready.wait();
    // SAFETY: the mutex lives for ever.
    unsafe { libc::pthread_mutex_lock(TURN.0.get()) };
    let _ = TcpListener::bind("127.0.0.1:0").expect("a port").accept();
}

#[test]
fn the_program() {
    let Ok(way) = std::env::var(WAY) else { return };
    let (way, threads) = way.split_once(' ').expect("two words");
    let threads: usize = threads.parse().expect("a number");
    let body = match way {
        "receives" => receives,
        "waits" => waits,
        _ => takes_turns,
    };
    let ready = Arc::new((Jobs::default(), Barrier::new(threads + 1)));
    for _ in 0..threads {
        let ready = ready.clone();
        let small = std::thread::Builder::new().stack_size(1 << 16);
        small.spawn(move || body(&ready.0, &ready.1)).expect("a thread");
    }
    ready.1.wait();
    println!("all wait");
    // The last of all threads is the one that may wake the others.
    let last = std::thread::spawn(|| TcpListener::bind("127.0.0.1:0").expect("a port").accept());
    let _ = last.join();
}

fn costs_little(way: &str, threads: usize) {
    let mut command = Command::new(std::env::current_exe().expect("the test"));
    command.args(["idle_threads_cost::the_program", "--exact", "--nocapture"]).env(WAY, format!("{way} {threads}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().expect("the program"));
    let mut said = BufReader::new(program.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("all wait")), "the program has ended");
    let mut w = Watcher::of(program.pid(), Config::default());
    // Meeting so many threads has its price once.
    w.run(Duration::from_secs(3));
    // SAFETY: plain call.
    let me = unsafe { libc::gettid() };
    let own = || cpu(std::process::id() as i32, me);
    let (start, before) = (Instant::now(), own());
    // Beyond the limit, at which each wait is judged anew.
    w.run(Duration::from_secs(8));
    assert!(start.elapsed() < PATIENCE);
    let share = (own() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    println!("{threads} threads, {way}: {:.2} % of a CPU", share * 100.0);
    w.quiet();
    assert!(share < MOST, "{:.1} % of a CPU", share * 100.0);
}

#[test]
fn at_connections() {
    costs_little("receives", 400);
}

#[test]
fn without_a_job() {
    costs_little("waits", 3000);
}

#[test]
fn in_turns_at_the_connections_that_come() {
    costs_little("takes-turns", 400);
}
