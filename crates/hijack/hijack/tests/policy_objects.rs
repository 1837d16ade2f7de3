//! Policy objects decide about calls inside the guest; one that faults or loops takes nothing
//! along.

mod common;
use common::{guest, object, run, run_with};
use orbit_hijack::{Answer, Decider, OnFailure, Options};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn with_object() -> Options {
    Options { object: Some(object("decides")), ..Options::default() }
}

fn knows(part: &str, options: &Options) -> common::Run {
    run(options, &[guest("knows", &[]).to_str().expect("a path"), part])
}

#[test]
fn calls_are_answered_altered_and_passed() {
    let errors = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("decides.err");
    let file = std::fs::File::create(&errors).expect("a file");
    let program = guest("knows", &[]);
    let run = run_with(&with_object(), &[program.to_str().expect("a path"), "decides"], |command| {
        command.stderr(Stdio::from(file));
    });
    assert_eq!(run.stdout, "ppid 4242\n");
    let text = std::fs::read_to_string(&errors).expect("read");
    // After the fault of the object its calls pass.
    assert_eq!(text, "mkdir -1 30 uname beta uid 77 rpc 6 fault 0 after 0\n");
    assert_eq!((run.outcome.object_faults, run.outcome.object_loops), (1, 0));
}

#[test]
fn a_loop_is_ended_and_the_call_passes() {
    let options = Options { object_limit: Some(Duration::from_millis(30)), ..with_object() };
    let run = knows("loops", &options);
    assert_eq!(run.stdout, "passed, 0\n");
    assert_eq!((run.outcome.object_faults, run.outcome.object_loops), (0, 1));
}

#[test]
fn a_loop_ends_the_process_where_that_is_set() {
    let options = Options { on_object_failure: OnFailure::Kill, ..with_object() };
    let run = knows("loops", &options);
    assert_eq!((run.stdout.as_str(), run.outcome.status), ("", 120));
}

#[test]
fn each_process_starts_its_object_anew_and_all_share_memory() {
    let line = "for i in 1 2 3; do /bin/true; done";
    let mut session = orbit_hijack::Session::start(&with_object(), &["sh", "-c", line].map(std::ffi::OsString::from))
        .expect("started");
    session.follow(|_| Ok(())).expect("followed");
    assert_eq!(session.share()[0].load(std::sync::atomic::Ordering::Relaxed), 4, "one shell, three programs");
}

#[test]
fn the_host_decides_where_it_is_asked() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&seen);
    let decider = Decider::new(move |question| {
        writer.lock().expect("unpoisoned").push((question.call, question.path.clone(), question.rule));
        Answer::Result(-i64::from(libc::EBADMSG))
    });
    let run = knows("asks", &Options { decider: Some(decider), ..with_object() });
    assert_eq!(run.stdout, format!("-1 {}\n", libc::EBADMSG));
    assert_eq!(*seen.lock().expect("unpoisoned"), [("chroot", "/never/there".to_owned(), None)]);
    assert_eq!((run.outcome.asked, run.outcome.unanswered), (1, 0));
}

#[test]
fn without_an_answer_in_time_the_call_passes() {
    let decider = Decider::new(|_| {
        std::thread::sleep(Duration::from_millis(700));
        Answer::Result(0)
    });
    let limit = Some(Duration::from_millis(50));
    let run = knows("asks", &Options { decider: Some(decider), ask_limit: limit, ..with_object() });
    assert_eq!(run.stdout, format!("-1 {}\n", libc::ENOENT));
    assert_eq!((run.outcome.asked, run.outcome.unanswered), (1, 1));
}

#[test]
fn a_rule_asks_a_program_by_its_name() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("asked.json");
    let line = format!("while read -r q; do echo \"$q\" >>{0}; echo ENOTNAM; done", place.display());
    let _ = std::fs::remove_file(&place);
    let options = Options {
        rules: orbit_hijack::rules::Rules::parse("chdir(path=\"/etc\") -> ask judge once").expect("a rule"),
        decider: Some(Decider::command(&line).expect("started")),
        ask_limit: Some(Duration::from_secs(30)),
        ..Options::default()
    };
    let run = run(&options, &["sh", "-c", "cd /etc && echo entered; cd /etc && echo entered"]);
    assert_eq!((run.stdout.as_str(), run.outcome.asked), ("entered\n", 1));
    let question = std::fs::read_to_string(&place).expect("asked");
    assert!(question.contains(r#""name":"judge","#) && question.contains(r#""path":"/etc""#), "{question}");
}

#[test]
fn a_decider_that_does_not_answer_is_counted_and_holds_nobody_up() {
    for line in ["exit 1", "echo nonsense", "exec sleep 600"] {
        let options = Options {
            rules: orbit_hijack::rules::Rules::parse("chdir -> ask").expect("a rule"),
            decider: Some(Decider::command(line).expect("started")),
            ask_limit: Some(Duration::from_millis(100)),
            ..Options::default()
        };
        let began = std::time::Instant::now();
        let run = run(&options, &["sh", "-c", "cd /etc && pwd"]);
        drop(options);
        assert_eq!((run.stdout.as_str(), run.outcome.asked, run.outcome.unanswered), ("/etc\n", 1, 1), "{line}");
        assert!(began.elapsed() < Duration::from_secs(60), "{line}: {:?}", began.elapsed());
    }
}

#[test]
fn a_late_answer_is_not_taken_for_the_next_question() {
    let options = Options {
        rules: orbit_hijack::rules::Rules::parse("chdir -> ask").expect("a rule"),
        decider: Some(Decider::command("read q; sleep 2; echo EIO; read q; echo pass").expect("started")),
        ask_limit: Some(Duration::from_secs(1)),
        ..Options::default()
    };
    let run = run(&options, &["sh", "-c", "cd /etc && sleep 2 && cd /usr && pwd"]);
    assert_eq!((run.stdout.as_str(), run.outcome.asked, run.outcome.unanswered), ("/usr\n", 2, 1));
}
