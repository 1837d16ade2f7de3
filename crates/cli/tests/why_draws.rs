//! `orbit why --svg`, `--html`, `--dot`, `--tree`: what waits for what, the ring in red, as files
//! that an XML parser, a browser and Graphviz take, whatever the program calls itself.

mod guard_common;
use guard_common::browser::{Shown, found, in_a_browser, is_well_formed};
use guard_common::{Dir, Owned, build, skipped, until};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

fn why(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbit")).arg("why").args(arguments).output().expect("orbit why")
}

fn text(arguments: &[&str]) -> String {
    let output = why(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn start(command: &mut Command) -> Owned {
    Owned(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a program"))
}

#[test]
fn a_ring_is_red_in_each_format() {
    if skipped() {
        return;
    }
    let dir = Dir::new("why-draws");
    let child = start(Command::new(build(&dir, "hangs.c")).arg("ring2"));
    let pid = child.0.id().to_string();
    let dot = until("the deadlock", || Some(text(&["--dot", &pid])).filter(|dot| dot.contains("color=red")));
    assert!(dot.starts_with("digraph why {") && dot.matches("[label=\"held by\"").count() == 2, "{dot}");
    if found(&["dot"]).is_some() {
        let file = dir.file("graph.dot", &dot);
        let drawn = Command::new("dot").arg("-Tsvg").arg(file).output().expect("dot");
        assert!(drawn.status.success(), "{drawn:?}");
    }
    let (svg, html) = (dir.0.join("hang.svg"), dir.0.join("hang.html"));
    let said = text(&["--svg", svg.to_str().expect("a path"), "--html", html.to_str().expect("a path"), &pid]);
    assert_eq!(said, "");
    let (picture, page) = (std::fs::read_to_string(&svg).expect("svg"), std::fs::read_to_string(&html).expect("html"));
    for text in [&picture, &page] {
        assert_eq!(text.matches("class=\"Thread Ring\"").count(), 2, "{text}");
        assert_eq!(text.matches("class=\"Lock Ring\"").count(), 2, "{text}");
        assert!(text.contains("deadlock: thread") && text.contains("path class=\"red\""), "{text}");
    }
    assert!(page.contains("class=\"stack\"") && page.contains("href=\"#s"), "{page}");
    is_well_formed(&svg);
    is_well_formed(&html);
    if let Some(Shown { text: shown, is_red, .. }) = in_a_browser(&dir, &format!("file://{}", html.display())) {
        assert!(shown.contains("held by") && shown.contains("deadlock: thread"), "{shown}");
        assert!(is_red, "nothing red in the picture");
    }
}

#[test]
fn a_hostile_name_stays_text() {
    if skipped() {
        return;
    }
    let dir = Dir::new("why-hostile");
    let name = "</text></svg><script>alert(1)</script>&amp;\"'\u{1b}]0;x\u{7}\u{202e}\\N]]>--> ";
    let child = start(Command::new("sleep").arg0(name).arg("1000"));
    let pid = child.0.id().to_string();
    let (svg, html) = (dir.0.join("name.svg"), dir.0.join("name.html"));
    let (svg_path, html_path) = (svg.to_str().expect("a path"), html.to_str().expect("a path"));
    let dot = until("its name", || {
        let dot = text(&["--dot", "--svg", svg_path, "--html", html_path, &pid]);
        dot.contains("alert(1)").then_some(dot)
    });
    for text in [std::fs::read_to_string(&svg).expect("svg"), std::fs::read_to_string(&html).expect("html"), dot] {
        assert!(text.contains("alert(1)") && !text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text}");
        assert!(text.starts_with("digraph") || !text.contains("<script"), "{text}");
    }
    is_well_formed(&svg);
    is_well_formed(&html);
}

/// A parent that waits for its child, which waits for room in a pipe that the parent would read.
const FULL_PIPE: &str = "\
import subprocess
child = subprocess.Popen(['yes'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.wait()
";

#[test]
fn a_tree_of_processes_that_wait_for_each_other() {
    if skipped() {
        return;
    }
    if found(&["python3"]).is_none() {
        println!("SKIP: needs python3");
        return;
    }
    let dir = Dir::new("why-tree");
    let child = start(Command::new("python3").args(["-c", FULL_PIPE]));
    let pid = child.0.id();
    let seen = until("they wait for each other", || {
        let seen = text(&["--tree", &pid.to_string()]);
        seen.contains("boxes wait only for each other").then_some(seen)
    });
    let line =
        |text: &str| seen.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text}: {seen}"));
    assert!(line(&format!("process {pid}: ")).contains("python3 -c"), "{seen}");
    assert!(line(": yes (").starts_with("  process"), "{seen}");
    assert!(line("room in the pipe").contains("thread"), "{seen}");
    assert!(seen.contains("who waits for whom:") && seen.contains(&format!("waits for process {pid}: ")), "{seen}");
    let html = dir.0.join("tree.html");
    text(&["--tree", "--html", html.to_str().expect("a path"), &pid.to_string()]);
    let page = std::fs::read_to_string(&html).expect("html");
    assert!(page.contains("class=\"Process Ring\"") && page.contains("class=\"Pipe Ring\""), "{page}");
    is_well_formed(&html);
    // The parent alone does not show that: the child's threads were not read.
    assert!(!text(&["--dot", &pid.to_string()]).contains("color=red"));
    drop(child);
}
