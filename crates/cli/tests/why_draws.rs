//! `orbit why --svg`, `--html`, `--dot`, `--tree`: what waits for what, the ring in red, as files
//! that an XML parser, a browser and Graphviz take, whatever the program calls itself.

mod guard_common;
use guard_common::{Dir, Owned, build, skipped, until};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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

/// Asserts that a file is XML.
fn is_well_formed(path: &Path) {
    let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
    match Command::new("python3").args(["-c", parse]).arg(path).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => println!("SKIP: needs python3"),
    }
}

fn found(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let at = |name: &&str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
    names.iter().find_map(at)
}

/// What a browser shows of a page: its text, and whether its picture has anything red.
fn in_a_browser(dir: &Dir, page: &Path) -> Option<(String, bool)> {
    let Some(browser) = found(&["chromium", "chromium-browser", "google-chrome"]) else {
        println!("SKIP: needs chromium");
        return None;
    };
    let shot = dir.0.join("page.png");
    let run = |arguments: &[String]| {
        let profile = format!("--user-data-dir={}", dir.0.join("profile").display());
        // One that does not come to an end shows nothing.
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "120"]).arg(&browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile]);
        command.args(arguments).env("HOME", &dir.0).stderr(Stdio::null()).output().expect("a browser")
    };
    let address = format!("file://{}", page.display());
    let shown = run(&["--dump-dom".to_owned(), address.clone()]);
    run(&["--window-size=1600,900".to_owned(), format!("--screenshot={}", shot.display()), address]);
    let red = r#"
import struct, sys, zlib
data, at, idat = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + size]
    if kind == b"IHDR": width, height, depth, colour = struct.unpack(">IIBB", body[:10])
    if kind == b"IDAT": idat += body
    at += size + 12
n = {2: 3, 6: 4}[colour]
raw, row, reds = zlib.decompress(idat), bytearray(width * n), 0
for y in range(height):
    line = raw[y * (width * n + 1):(y + 1) * (width * n + 1)]
    how, new = line[0], bytearray(line[1:])
    for x in range(width * n):
        a, b, c = (new[x - n] if x >= n else 0), row[x], (row[x - n] if x >= n else 0)
        p = a + b - c
        near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        new[x] = (new[x] + [0, a, b, (a + b) // 2, near][how]) & 255
    row = new
    reds += sum(1 for x in range(0, width * n, n) if new[x] > 180 and new[x + 1] < 40 and new[x + 2] < 40)
print(reds)
"#;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    if !text.contains("</html>") || !shot.exists() {
        println!("SKIP: needs a chromium that runs without a display here");
        return None;
    }
    let counted = Command::new("python3").args(["-c", red]).arg(&shot).output().ok()?;
    let reds: u32 = String::from_utf8_lossy(&counted.stdout).trim().parse().unwrap_or(0);
    Some((text, reds > 100))
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
    if let Some((shown, is_red)) = in_a_browser(&dir, &html) {
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
