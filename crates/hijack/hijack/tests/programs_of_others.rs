//! Programs that nobody here wrote do under a policy what the policy says, and nothing else
//! changes.

mod common;
use common::{has, run};
use orbit_hijack::Options;
use orbit_hijack::rules::Rules;

fn ruled(rules: &str) -> Options {
    Options { rules: Rules::parse(rules).unwrap_or_else(|error| panic!("{error}")), ..Options::default() }
}

fn shell(rules: &str, line: &str) -> String {
    run(&ruled(rules), &["sh", "-c", line]).stdout
}

fn place(name: &str) -> String {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("a folder");
    place.display().to_string()
}

#[test]
fn git_survives_interrupted_and_short_reads() {
    if !has("git") {
        return;
    }
    let line = format!(
        "cd {}; git init -q .; seq 1 20000 >a; git add a; git -c user.name=n -c user.email=e commit -qm a; \
         git fsck --strict 2>&1; git show HEAD:a | tail -1",
        place("git")
    );
    // Not the loader's reads of libraries, which it does not repeat.
    let text = shell(
        "read(fd=path(\"*/git/*\"), size>100) -> size=100 every 3; read(fd=path(\"*/git/*\")) -> EINTR every 7",
        &line,
    );
    assert!(text.ends_with("20000\n"), "{text}");
}

#[test]
fn sqlite_keeps_its_data_when_the_disk_is_full() {
    if !has("sqlite3") {
        return;
    }
    let place = place("sqlite");
    let begin = format!("sqlite3 {place}/db 'create table t(a); insert into t values(1),(2);'");
    assert!(std::process::Command::new("sh").args(["-c", &begin]).status().expect("sh").success());
    let insert = "insert into t select value from generate_series(1, 50000);";
    let text =
        shell("pwrite64(size>1) -> ENOSPC after 5", &format!("sqlite3 {place}/db '{insert}' 2>&1; echo status $?"));
    assert!(text.contains("full") && text.contains("status 1"), "{text}");
    assert_eq!(shell("", &format!("sqlite3 {place}/db 'pragma integrity_check; select sum(a) from t'")), "ok\n3\n");
}

#[test]
fn gcc_reports_what_it_cannot_open() {
    let line = format!(
        "cd {}; echo '#include <stdio.h>\nint main(void) {{ puts(\"x\"); }}' >a.c; LC_ALL=C gcc a.c -o a 2>&1; echo $?",
        place("gcc")
    );
    let text = shell("openat|open(path=\"*/stdio.h\") -> EACCES", &line);
    assert!(text.contains("stdio.h: Permission denied") && text.ends_with("1\n"), "{text}");
    let text = shell("write -> count", &(line + "; ./a"));
    assert!(text.ends_with("0\nx\n"), "{text}");
}

#[test]
fn perl_reads_another_file() {
    if has("perl") {
        let place = place("perl");
        std::fs::write(format!("{place}/other"), "another\n").expect("written");
        let rule = format!("openat(path=\"/etc/hostname\") -> \"{place}/other\"");
        assert_eq!(shell(&rule, "perl -e 'open(F, \"/etc/hostname\"); print <F>'"), "another\n");
    }
}

#[test]
fn openssl_fails_without_its_configuration_only_where_it_needs_it() {
    if has("openssl") {
        let text = shell("openat(path=\"*openssl.cnf\") -> ENOENT", "printf abc | openssl dgst -sha256");
        assert!(text.trim().ends_with("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "{text}");
    }
}

#[test]
fn curl_cannot_connect_where_a_rule_says_so() {
    if has("curl") {
        let text = shell(
            "connect(port=1..65535) -> ECONNREFUSED",
            "curl -s --max-time 20 http://127.0.0.1:9/; echo $?; curl -s file:///etc/hostname | wc -l",
        );
        assert_eq!(text, "7\n1\n");
    }
}
