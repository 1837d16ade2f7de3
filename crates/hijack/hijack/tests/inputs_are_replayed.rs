//! What a program with threads, or a static one, read from outside is read again from the log,
//! without the outside.

mod common;
use common::{guest, run};
use orbit_hijack::{Options, inputs};

fn runs_the_same(name: &str, flags: &[&str]) {
    let program = guest("reads", flags);
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let log = place.join(format!("{name}.inputs"));
    let (left, right) = (place.join(format!("{name}.left")), place.join(format!("{name}.right")));
    let mut first = String::new();
    // The first run reads what two programs write; in the second both write something else.
    for (turn, seed) in [(0, "alpha"), (1, "beta")] {
        let mut options = Options::default();
        match turn {
            0 => inputs::record(&mut options, &log).expect("a log"),
            _ => inputs::replay(&mut options, &log).expect("the log"),
        }
        let line = format!(
            "rm -f {0} {1}; mkfifo {0} {1}; (seq 1 500; echo {seed}) >{0} & (seq 900 1100; echo {seed}) >{1} &
             exec {2} <{0} 3<{1}",
            left.display(),
            right.display(),
            program.display()
        );
        // The shell runs natively: only the program's own inputs count.
        let script = place.join(format!("{name}.sh"));
        std::fs::write(&script, line).expect("written");
        let run = if turn == 0 {
            run(&options, &["sh", script.to_str().expect("a path")])
        } else {
            // Without the outside: descriptors that end at once.
            run(&options, &["sh", "-c", &format!("exec {} </dev/null 3</dev/null", program.display())])
        };
        assert_eq!(run.outcome.status, 0);
        assert_eq!(run.outcome.object_faults, 0);
        if turn == 0 {
            first = run.stdout;
            assert!(first.split_whitespace().count() == 3, "{first}");
        } else {
            assert_eq!(run.stdout, first);
        }
    }
}

#[test]
fn of_a_program_with_threads() {
    runs_the_same("threads", &[]);
}

#[test]
fn of_a_static_program() {
    runs_the_same("static", &["-static"]);
}

#[test]
fn what_is_no_record_is_refused() {
    let error = inputs::replay(&mut Options::default(), "/bin/sh".as_ref()).expect_err("a program");
    assert_eq!(error.to_string(), "it is no record of inputs (--record-inputs)");
}
