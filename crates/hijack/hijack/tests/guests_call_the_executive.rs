//! Guests that know of the executive: the gate, calls between guests, contexts; and the host stops
//! and steps threads.

mod common;
use common::{guest, object, run};
use orbit_hijack::{Options, Session, control::Stopped};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

fn knows(part: &str, options: &Options) -> String {
    run(options, &[guest("knows", &[]).to_str().expect("a path"), part]).stdout
}

#[test]
fn a_program_knows_that_it_runs_natively() {
    let output = Command::new(guest("knows", &[])).arg("rpcs").output().expect("run");
    assert_eq!(output.stdout, b"native\n");
}

#[test]
fn calls_of_the_policy_survive_signals_at_any_moment() {
    let options = Options { object: Some(object("decides")), ..Options::default() };
    assert_eq!(knows("rpcs", &options), "wrong 0, handled enough 1\n");
}

#[test]
fn guests_call_each_other_and_a_dead_one_is_noticed() {
    let epipe = -i64::from(libc::EPIPE);
    assert_eq!(knows("channels", &Options::default()), format!("wrong 0, dead receiver {epipe}, status 0\n"));
}

#[test]
fn contexts_take_turns() {
    let text = knows("turns", &Options::default());
    assert_eq!((text.matches('1').count(), text.matches('2').count()), (3, 3), "{text}");
    assert!(text.contains("12") && text.contains("21"), "{text}");
}

#[test]
fn a_policy_picks_the_context() {
    let options = Options { object: Some(object("decides")), ..Options::default() };
    assert_eq!(knows("turns", &options), "222111\n");
}

#[test]
fn contexts_run_by_their_shares() {
    let text = knows("shares", &Options::default());
    let figures: Vec<f64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert!(figures[0] == 0.0, "{text}");
    for (share, wanted) in figures[1..].iter().zip([1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]) {
        assert!((share - wanted).abs() < 0.05, "{text}");
    }
}

#[test]
fn a_thread_is_stopped_stepped_altered_and_continues() {
    let arguments = [guest("knows", &[]).into_os_string(), OsString::from("waits")];
    let mut session = Session::start_with(&Options::default(), &arguments, |command| {
        command.stdout(Stdio::piped());
    })
    .expect("started");
    let mut output = BufReader::new(session.stdout().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let address = u64::from_str_radix(line.trim().trim_start_matches("0x"), 16).expect("an address");
    let (_, tid) = session.threads()[0];
    let count = |stopped: &Stopped<'_>| {
        let mut bytes = [0; 8];
        stopped.read(address, &mut bytes).expect("read");
        i64::from_ne_bytes(bytes)
    };
    // The line comes before the loop: the first stop may be behind the call that wrote it.
    let stopped = loop {
        let stopped = session.stop(tid, LONG).expect("stopped");
        if count(&stopped) > 1 {
            break stopped;
        }
    };
    let value = || count(&stopped);
    let before = value();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(value(), before, "a stopped thread does nothing");
    // One turn of the loop has less than ten instructions: twenty steps make it count on, by a
    // little.
    let mut positions = std::collections::HashSet::new();
    for _ in 0..20 {
        stopped.step(LONG).expect("stepped");
        positions.insert(stopped.registers().rip);
    }
    assert!((1..=10).contains(&(value() - before)), "{} turns", value() - before);
    assert!((2..=10).contains(&positions.len()), "{positions:x?}");
    // A register that the program does not use keeps what is written into it.
    let mut registers = stopped.registers();
    registers.r15 = 0x1234;
    stopped.set_registers(&registers);
    stopped.step(LONG).expect("stepped");
    assert_eq!(stopped.registers().r15, 0x1234);
    // The loop ends when its counter is 0.
    stopped.write(address, &(-1i64).to_ne_bytes()).expect("written");
    for _ in 0..10 {
        if value() == 0 {
            break;
        }
        stopped.write(address, &(-1i64).to_ne_bytes()).expect("written");
        stopped.step(LONG).expect("stepped");
    }
    drop(stopped);
    session.follow(|_| Ok(())).expect("followed");
    line.clear();
    output.read_line(&mut line).expect("a line");
    assert_eq!((line.as_str(), session.outcome().status), ("over\n", 0));
}

#[test]
fn a_thread_that_no_guest_has_cannot_be_stopped() {
    let mut session = Session::start(&Options::default(), &[OsString::from("true")]).expect("started");
    let error = session.stop(std::process::id(), LONG).expect_err("not a guest");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    session.follow(|_| Ok(())).expect("followed");
}
