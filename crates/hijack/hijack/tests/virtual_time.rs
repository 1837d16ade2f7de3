//! Clocks that run faster or slower, stand still, or jump: sleeps, time-outs and timers agree with
//! them.

mod common;
use common::{has, run};
use orbit_hijack::rules::Rules;
use orbit_hijack::{Jump, Options, Speed};
use std::time::{Duration, Instant};

fn at(times: f64) -> Options {
    Options { speed: Speed::times(times), ..Options::default() }
}

#[test]
fn an_hour_passes_at_once() {
    let began = Instant::now();
    assert_eq!(run(&at(36_000.0), &["sleep", "1h"]).outcome.status, 0);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn clocks_and_time_outs_agree() {
    if !has("python3") {
        return;
    }
    let code = "import time, select, signal, threading
def took(wait):
    began = (time.time(), time.monotonic()); wait(); ended = (time.time(), time.monotonic())
    return [b - a for a, b in zip(began, ended)]
signal.signal(signal.SIGALRM, lambda *a: None)
waits = [lambda: time.sleep(1000), lambda: select.select([], [], [], 1000), lambda: threading.Event().wait(1000),
         lambda: (signal.alarm(1000), signal.pause())]
for wait in waits:
    assert all(999 <= t for t in took(wait)), took(wait)
print('agree')";
    let began = Instant::now();
    let run = run(&at(1000.0), &["/usr/bin/python3", "-c", code]);
    assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "agree\n"));
    assert!(began.elapsed() < Duration::from_secs(120), "{:?} for 4,000 s", began.elapsed());
}

#[test]
fn an_alarm_rings_before_a_longer_sleep_ends() {
    if !has("python3") {
        return;
    }
    let code = "import time, signal
rang = []
signal.signal(signal.SIGALRM, lambda *a: rang.append(time.monotonic()))
began = time.monotonic(); signal.alarm(20); left = signal.alarm(20); time.sleep(90)
print(1 <= left <= 20, began + 20 <= rang[0] < began + 90)";
    assert_eq!(python(&at(100.0), code), "True True\n");
}

#[test]
fn timers_of_cpu_time_are_real() {
    if !has("python3") {
        return;
    }
    let code = "import time, signal
signal.setitimer(signal.ITIMER_VIRTUAL, 30)
while time.process_time() < 0.5: pass
print(29 < signal.getitimer(signal.ITIMER_VIRTUAL)[0] <= 30.1)";
    assert_eq!(python(&at(100.0), code), "True\n");
}

#[test]
fn slower_than_real() {
    let began = Instant::now();
    assert_eq!(run(&at(0.1), &["sleep", "0.05"]).outcome.status, 0);
    assert!(began.elapsed() >= Duration::from_millis(500));
}

#[test]
fn only_speeds_that_clocks_can_run_at() {
    assert!(Speed::times(0.0).is_none() && Speed::times(f64::NAN).is_none() && Speed::times(1e7).is_none());
}

fn python(options: &Options, code: &str) -> String {
    let run = run(options, &["/usr/bin/python3", "-c", code]);
    assert_eq!(run.outcome.status, 0, "{}", run.stdout);
    run.stdout
}

#[test]
fn all_clocks_that_can_be_asked_agree() {
    let program = common::guest("clocks", &[]);
    let text = run(&at(100.0), &[program.to_str().expect("a path")]).stdout;
    let gone: Vec<i64> = text.lines().map(|line| line.parse().expect("seconds")).collect();
    assert!(gone.len() == 12 && gone.iter().all(|seconds| *seconds >= 49), "{gone:?} of 50 s");
}

/// Real-time clocks stand still for good; the others show the waits, or programs would wait again.
#[test]
fn frozen_clocks_show_only_waits() {
    if !has("python3") {
        return;
    }
    let code = "import time, threading, select, socket
began, began_wait = time.time(), time.monotonic()
seen = set()
def watch():
    for _ in range(20):
        seen.add(time.time()); time.sleep(0.005)
ts = [threading.Thread(target=watch) for _ in range(4)]
[t.start() for t in ts]; [t.join(30) for t in ts]
threading.Event().wait(0.05); select.select([], [], [], 0.05)
a, b = socket.socketpair(); a.settimeout(0.05)
try: a.recv(1)
except TimeoutError: print('timed out')
print(len(seen), began == time.time(), time.monotonic() - began_wait >= 0.25)
shown = time.monotonic()
for _ in range(200000): pass
print(shown == time.monotonic())
until = time.monotonic() + 0.2
while time.monotonic() < until: time.sleep(0.01)";
    let began = Instant::now();
    assert_eq!(
        python(&Options { speed: Some(Speed::FROZEN), ..Options::default() }, code),
        "timed out\n1 True True\nTrue\n"
    );
    assert!(began.elapsed() >= Duration::from_millis(150), "waits take their time: {:?}", began.elapsed());
}

#[test]
fn timers_of_frozen_runtimes_end() {
    let options = Options { speed: Some(Speed::FROZEN), ..Options::default() };
    if has("node") {
        let code = "setTimeout(() => console.log('slept'), 100)";
        assert_eq!(run(&options, &["node", "-e", code]).stdout, "slept\n");
    }
}

#[test]
fn a_frozen_clock_is_the_same_in_all_processes() {
    let options = Options { rules: Rules::parse("clock_* -> virtual frozen").expect("a rule"), ..Options::default() };
    let text = run(&options, &["sh", "-c", "for i in 1 2 3; do date +%s%N; sleep 0.02; done | sort -u | wc -l"]).stdout;
    assert_eq!(text, "1\n");
}

#[test]
fn a_jump_at_the_start_sets_the_real_time_clock_only() {
    if !has("python3") {
        return;
    }
    let code = "import time; print(int(time.time()), int(time.monotonic()))";
    let read = |options: &Options| -> Vec<i64> {
        python(options, code).split_whitespace().map(|word| word.parse().expect("a number")).collect()
    };
    let jump = Jump::parse("+365d");
    let (before, jumped) = (read(&Options::default()), read(&Options { jump, ..Options::default() }));
    assert!((31_536_000..31_536_120).contains(&(jumped[0] - before[0])), "{before:?} {jumped:?}");
    assert!((0..120).contains(&(jumped[1] - before[1])), "{before:?} {jumped:?}");
}

#[test]
fn a_wait_until_a_time_of_day_ends_when_the_clock_jumps_past_it() {
    // An hour ahead; after 0.3 s the clock is set two hours ahead. Sleeps that are relative, and
    // the monotonic clock, are not concerned.
    let program = common::guest("jumps", &[]);
    let options = Options { jump: Jump::parse("+2h after 300ms"), ..Options::default() };
    let began = Instant::now();
    let run = run(&options, &[program.to_str().expect("a path")]);
    assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "until late 1 timerfd 1 futex 1 monotonic 1 jumped 1\n"));
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_clock_that_is_set_back_is_seen_to_go_back_once() {
    if !has("python3") {
        return;
    }
    let code = "import time
back, last, mono = 0, time.time(), time.monotonic()
end = mono + 1
while mono < end:
    now, m = time.time(), time.monotonic()
    assert m >= mono
    if now < last: back += 1; by = last - now
    last, mono = now, m
    time.sleep(0.001)
print(back, 29 <= by <= 30)";
    let options =
        Options { rules: Rules::parse("clock_* -> virtual -30s after 500ms").expect("a rule"), ..Options::default() };
    assert_eq!(python(&options, code), "1 True\n");
}

#[test]
fn what_is_left_of_a_timer_is_in_the_programs_time() {
    if !has("python3") {
        return;
    }
    let code = "import signal
signal.signal(signal.SIGALRM, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 100000)
left = signal.getitimer(signal.ITIMER_REAL)[0]
old = signal.setitimer(signal.ITIMER_REAL, 0)[0]
print(50000 < left <= 100001, 50000 < old <= 100001)";
    assert_eq!(python(&at(100.0), code), "True True\n");
}

#[test]
fn a_rule_for_virtual_time_needs_a_clock_and_a_time() {
    let error = |text: &str| Rules::parse(text).expect_err("no rule").to_string();
    assert!(error("read -> virtual x100").contains("these calls are no clocks"));
    assert!(error("clock_* -> virtual x0").contains("`x0` is no virtual time"));
    assert!(error("clock_* -> virtual 1h").contains("virtual +1h, virtual -30s after 10s"));
}
