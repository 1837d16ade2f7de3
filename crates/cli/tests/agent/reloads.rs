//! SIGHUP reads the configuration again; one that is not sound leaves the old one in force. What
//! `--check` says of a file.

use crate::guard_common::{Dir, skipped, until};
use crate::running::{Agent, start, well};
use std::process::Command;

fn policy(name: &str, command: &str) -> String {
    format!("[[policy]]\nname = \"{name}\"\nmatch = {{ command = \"{command}\" }}\n")
}

#[test]
fn a_sound_file_is_taken_and_a_bad_one_is_not() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-reload");
    let (one, two) = (well(&dir, "oa-reload1"), well(&dir, "oa-reload2"));
    let agent = Agent::start(&dir, &policy("first", "oa-reload1"));
    let _children = [start(&one, "1000", None), start(&two, "1000", None)];
    agent.watches("first", 1);
    dir.file("agent.toml", "[[policy]]\nnmae = \"x\"\n");
    agent.hang_up();
    let why = until("a rejection", || agent.status()["rejected"].as_str().map(str::to_owned));
    assert!(why.contains("agent.toml:2: unknown field `nmae`"), "{why}");
    agent.watches("first", 1);
    assert!(agent.log().contains("the old one stays"), "{}", agent.log());
    dir.file("agent.toml", &policy("second", "oa-reload2").replace("}\n", "}\nwatch = { limit = \"2s\" }\n"));
    agent.hang_up();
    agent.watches("second", 1);
    let status = agent.status();
    assert!(status["rejected"].is_null());
    assert_eq!(status["services"].as_array().map(Vec::len), Some(1), "{status:#}");
}

#[test]
fn a_check_says_what_is_wrong_and_what_would_be_watched() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-check");
    let bin = well(&dir, "oa-check");
    let _child = start(&bin, "1000", None);
    let check = |text: &str| {
        let file = dir.file("checked.toml", text);
        let done =
            Command::new(env!("CARGO_BIN_EXE_orbit")).args(["agent", "--check"]).arg(file).output().expect("orbit");
        let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
        (done.status.code(), text)
    };
    let (code, text) =
        until("its name", || Some(check(&policy("a", "oa-check"))).filter(|(_, text)| text.contains("would watch")));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("policy a: on_hang = report, limit 5s") && text.contains("(1 processes)"), "{text}");
    let (code, text) = check("[[policy]]\nname = \"l\"\nmatch = { namespace = \"s\", labels = { a = \"b\" } }\n");
    assert_eq!(code, Some(1));
    assert!(text.contains("unusable: labels and workload need"), "{text}");
    let (code, text) = check("[limit]\n");
    assert_eq!(code, Some(1));
    assert!(text.contains("checked.toml:1: unknown field `limit`"), "{text}");
}
