//! Pages in a browser, where one is installed.

use super::Dir;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Asserts that a file is XML.
pub fn is_well_formed(path: &Path) {
    let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
    match Command::new("python3").args(["-c", parse]).arg(path).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => println!("SKIP: needs python3"),
    }
}

/// The first of these programs that is installed.
pub fn found(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let at = |name: &&str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
    names.iter().find_map(at)
}

/// What a browser shows of a page.
pub struct Shown {
    /// What its scripts left of it.
    pub text: String,
    /// Whether its picture has anything red.
    pub is_red: bool,
    /// What the browser said to its console.
    pub said: String,
}

/// Opens an address in a browser; `None`, with a line that says so, where there is none that runs.
pub fn in_a_browser(dir: &Dir, address: &str) -> Option<Shown> {
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
        command.args(["--enable-logging=stderr"]).args(arguments);
        command.env("HOME", &dir.0).output().expect("a browser")
    };
    let shown = run(&["--dump-dom".to_owned(), address.to_owned()]);
    run(&["--window-size=1600,900".to_owned(), format!("--screenshot={}", shot.display()), address.to_owned()]);
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
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    Some(Shown { text, is_red: reds > 100, said })
}
