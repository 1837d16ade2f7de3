//! The calls that the executive counts are those that `strace -f -c` counts, call by call.

mod common;
use common::{guest, has, run_with};
use orbit_hijack::Options;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Counts of `strace -f -c`. It does not count calls that never return.
fn counted_by_strace(name: &str, arguments: &[&str]) -> BTreeMap<String, u64> {
    let to = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.strace"));
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(&to).args(arguments);
    // With the same kind of output as ours: programs ask what it is.
    let done = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    assert!(done.is_ok(), "strace runs");
    let text = std::fs::read_to_string(&to).expect("strace's table");
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let call = words.last().filter(|word| **word != "total" && **word != "syscall")?;
        Some(((*call).to_owned(), words.get(3)?.parse().ok()?))
    });
    lines.collect()
}

fn assert_equal(name: &str, arguments: &[&str]) {
    if !has("strace") || !has(arguments[0]) && !arguments[0].contains('/') {
        return;
    }
    // Programs ask for random numbers, sleep, wait for locks: an unequal pair may be equal the next
    // time. What the executive counts wrongly is unequal each time.
    let mut last = String::new();
    for trace in [false, true, false, true, false, true, false, true, false] {
        let options = Options { trace, ..Options::default() };
        let quiet = |command: &mut Command| {
            command.stderr(Stdio::null());
        };
        let mut ours = run_with(&options, arguments, quiet).outcome.calls;
        let mut theirs = counted_by_strace(name, arguments);
        // strace counts no calls that do not return. Signals that arrive together are handled once.
        ours.retain(|call, _| !["exit", "exit_group", "rt_sigreturn"].contains(&call.as_str()));
        theirs.remove("rt_sigreturn");
        let total: u64 = theirs.values().sum();
        assert!(total > 4, "strace counted {total} calls");
        if ours == theirs {
            return;
        }
        let names = ours.keys().chain(theirs.keys());
        let differ = names.filter(|call| ours.get(*call) != theirs.get(*call));
        last = differ.map(|call| format!("{call}: {:?} {:?}; ", ours.get(call), theirs.get(call))).collect();
    }
    panic!("{arguments:?}: executive, strace: {last}");
}

#[test]
fn ls() {
    assert_equal("ls", &["ls", "-l", "/usr/bin"]);
}

#[test]
fn find() {
    assert_equal("find", &["find", "/usr/share/doc", "-name", "copyright"]);
}

#[test]
fn static_program() {
    assert_equal("static", &[guest("plain", &["-static"]).to_str().expect("a path")]);
}

#[test]
fn sqlite() {
    let statements = "create table t(a); insert into t values(1),(2); select sum(a) from t;";
    assert_equal("sqlite", &["sqlite3", ":memory:", statements]);
}

#[test]
fn bash_pipes() {
    assert_equal("bash", &["bash", "-c", "for i in 1 2 3; do echo $i | cat; done; ls / | sort | head -2"]);
}

#[test]
fn python_that_spawns() {
    let code = "import subprocess, json; print([subprocess.run(['true']).returncode for i in range(5)])";
    assert_equal("python", &["/usr/bin/python3", "-c", code]);
}

#[test]
fn perl_that_forks() {
    let code = "open(my $f, '<', '/etc/passwd'); my $n = () = <$f>; my $p = fork; if (!$p) { exit 3 } waitpid($p, 0); \
                print $n, ' ', $? >> 8, qq{\\n}; print `echo from a shell`;";
    assert_equal("perl", &["perl", "-e", code]);
}

#[test]
fn git_that_commits() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("counted.git");
    let line = format!(
        "rm -rf {0}; git init -q {0}; cd {0}; echo a >a; git add a; \
         git -c user.name=n -c user.email=e -c gc.auto=0 commit -qm a; git log --oneline | wc -l",
        place.display()
    );
    if has("git") {
        assert_equal("git", &["sh", "-c", &line]);
    }
}

#[test]
fn gcc_that_compiles() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/plain.c");
    assert_equal("gcc", &["gcc", "-c", "-o", "/dev/null", source.to_str().expect("a path")]);
}

#[test]
fn openssl_that_hashes() {
    assert_equal("openssl", &["openssl", "dgst", "-sha256", "/etc/passwd"]);
}

#[test]
fn tar_with_a_compressor() {
    let to = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("counted.tar");
    let line = format!("tar cf {0} /usr/share/doc/bash 2>/dev/null; gzip -nf {0}; rm {0}.gz", to.display());
    assert_equal("tar", &["sh", "-c", &line]);
}
