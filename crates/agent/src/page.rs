//! The status page as HTML: one file, without a framework, that loads nothing.
//!
//! Promises: pure; all text is escaped, whoever chose it, and has no character that browsers obey;
//! there is no attribute of a style or an event, so that the answer's policy holds for all of it;
//! it is XML, too, which tests read.

use crate::state::{Detail, View};
use serde_json::Value;
use std::fmt::Write;
use why::escaped;

const STYLE: &str = "\
body{font:15px system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}\
h1{font-size:1.4em}h2{font-size:1.15em;margin-top:1.8em}h3{font-size:1em;margin:.2em 0}\
table{border-collapse:collapse}th,td{text-align:left;padding:.25em .9em .25em 0;vertical-align:top}\
th{border-bottom:1px solid #aaa}td{border-bottom:1px solid #eee}td.n{text-align:right}\
pre{font:13px ui-monospace,DejaVu Sans Mono,monospace;background:#f6f6f6;padding:.8em;overflow:auto}\
.hang{border-left:4px solid #c00;padding-left:1em;margin:1em 0}.picture{overflow:auto;border:1px solid #ddd}\
.state-hangs,.trouble{color:#c00;font-weight:bold}.state-put{color:#06c}.faint{color:#666}.heads{position:absolute}";

/// Copies a report; where the browser forbids that, marks it. Without scripts there is no button.
const SCRIPT: &str = "\
for (const button of document.querySelectorAll('button[data-copy]')) {
  button.hidden = false;
  button.addEventListener('click', async () => {
    const report = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(report.textContent);
      button.textContent = 'copied';
    } catch (error) {
      report.parentElement.open = true;
      getSelection().selectAllChildren(report);
      button.textContent = 'marked';
    }
  });
}
";

/// The page. `nonce` marks its script and its style.
pub fn html(view: &View, nonce: &str) -> String {
    let status = &view.status;
    let title = format!("orbit agent on {}", view.host);
    let mut out = format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{}</title>\n\
         <style nonce=\"{nonce}\">{STYLE}{}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escaped(&title),
        why::picture_style(),
        escaped(&title)
    );
    head(&mut out, status);
    hangs(&mut out, view);
    tables(&mut out, status);
    let _ = write!(out, "<script nonce=\"{nonce}\">\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn head(out: &mut String, status: &Value) {
    let count = |name: &str| list(status, name).len();
    let _ = writeln!(
        out,
        "<p>Hangs: {}. Services watched: {}. As of {}; reload for news.</p>\n<p class=\"faint\">version {}, {}</p>",
        count("hangs"),
        count("services"),
        text(&status["at"]),
        text(&status["version"]),
        text(&status["config"])
    );
    let mut trouble = |what: String, why: &Value| {
        let _ = writeln!(out, "<p><span class=\"trouble\">{what}</span>: {}</p>", text(why));
    };
    if !status["rejected"].is_null() {
        trouble("The last configuration was rejected".into(), &status["rejected"]);
    }
    for policy in list(status, "policies").iter().filter(|policy| policy["unusable"].is_string()) {
        trouble(format!("Policy {} is unusable", text(&policy["policy"])), &policy["unusable"]);
    }
}

fn hangs(out: &mut String, view: &View) {
    let all = list(&view.status, "hangs");
    *out += "<h2>Hangs</h2>\n";
    if all.is_empty() {
        *out += "<p>None is known.</p>\n";
    }
    if view.details.iter().flatten().any(|detail| detail.drawing.is_ok()) {
        let _ = writeln!(
            out,
            "<p class=\"faint\">In pictures red waits for itself, orange waits for what is red, yellow uses a CPU. A \
             box shows its stack while the pointer rests on it.</p>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" class=\"heads\" width=\"0\" height=\"0\"><defs>{}</defs></svg>",
            why::picture_heads()
        );
    }
    for (n, (hang, detail)) in all.iter().zip(&view.details).enumerate() {
        one_hang(out, n, hang, detail.as_deref());
    }
}

fn one_hang(out: &mut String, n: usize, hang: &Value, detail: Option<&Detail>) {
    let facts = [
        ("since", text(&hang["since"])),
        ("reported", text(&hang["at"])),
        ("certainty", text(&hang["sure"])),
        ("kind", text(&hang["kind"])),
        ("thread", format!("{} of process {}", hang["tid"], hang["pid"])),
        ("policy", text(&hang["policy"])),
        ("done", if hang["did"] == "" { "reported".to_owned() } else { text(&hang["did"]) }),
    ];
    let _ = writeln!(
        out,
        "<section class=\"hang\">\n<h3>{}</h3>\n<p><strong>{}</strong></p>\n<table>",
        text(&hang["service"]),
        text(&hang["why"])
    );
    for (name, value) in &facts {
        let _ = writeln!(out, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    *out += "</table>\n";
    let lines = match detail.map(|detail| &detail.drawing) {
        Some(Ok(drawing)) => {
            let _ = writeln!(out, "<div class=\"picture\">\n{}</div>", drawing.picture);
            drawing.text.lines().map(escaped).collect::<Vec<_>>().join("\n")
        }
        Some(Err(reason)) => format!("not drawn: {}", escaped(reason)),
        None => "not drawn: beyond the room for pictures, or the budget of reports".to_owned(),
    };
    // What is copied is a report by itself.
    let [since, _, sure, kind, ..] = &facts;
    let _ = writeln!(
        out,
        "<p><button type=\"button\" hidden=\"hidden\" data-copy=\"report-{n}\">Copy the report</button></p>\n\
         <details><summary>Report with stacks</summary><pre id=\"report-{n}\">{} hangs ({}, {}) since {}\n{}\n\n\
         {lines}</pre></details>\n</section>",
        text(&hang["service"]),
        kind.1,
        sure.1,
        since.1,
        text(&hang["why"])
    );
}

fn tables(out: &mut String, status: &Value) {
    let services = list(status, "services").iter().map(|service| {
        let class = match service["state"].as_str().unwrap_or_default() {
            state if state.starts_with("hangs") => " class=\"state-hangs\"",
            state if state.starts_with("put back") => " class=\"state-put\"",
            _ => "",
        };
        let cells = [text(&service["service"]), text(&service["policy"])].map(|cell| format!("<td>{cell}</td>"));
        let state = text(&service["state"]);
        format!("{}<td class=\"n\">{}</td><td{class}>{state}</td>", cells.concat(), service["processes"])
    });
    table(out, "Services", &["service", "policy", "processes", "state"], services, "No process is selected.");
    let row = |keys: &'static [&'static str]| {
        move |each: &Value| keys.iter().map(|key| format!("<td>{}</td>", text(&each[key]))).collect::<String>()
    };
    let unwatched = row(&["service", "command", "processes", "policy", "why"]);
    let heads = ["service", "command", "processes", "policy", "why not"];
    table(
        out,
        "Not watched",
        &heads,
        list(status, "unwatched").iter().map(unwatched),
        "All that is selected is watched.",
    );
    let kept = row(&["name", "pid", "mode", "checkpoints", "crashes", "hangs", "put_back", "restarts"]);
    let heads = ["program", "process", "mode", "checkpoints", "crashes", "hangs", "put back", "restarts"];
    let none = format!("No keeper of the agent's user ({}) answers here.", text(&status["kept_of"]));
    table(out, "Kept programs", &heads, list(status, "kept").iter().map(kept), &none);
    let over = row(&["service", "why", "since", "over", "how", "did"]);
    let heads = ["service", "hang", "since", "over", "how", "done"];
    table(out, "Hangs that are over", &heads, list(status, "past").iter().map(over), "None since the agent began.");
    let cost = &status["agent"];
    let number = |key: &str, digits: usize| format!("{:.digits$}", cost[key].as_f64().unwrap_or(0.0));
    let rows = [
        ("running since", text(&cost["started"])),
        ("CPU", format!("{} s, {} % of one CPU", number("cpu_seconds", 1), number("cpu_percent", 2))),
        ("resident memory", orbit_console::out::bytes(cost["resident_bytes"].as_u64().unwrap_or(0))),
        (
            "last scan for processes",
            format!("{} s; mean {} s", number("scan_seconds", 4), number("scan_mean_seconds", 4)),
        ),
    ];
    let rows = rows.iter().map(|(name, value)| format!("<th>{name}</th><td>{value}</td>"));
    table(out, "The agent's own cost", &[], rows, "");
}

/// A table with its heading; `none` where it has no row.
fn table(out: &mut String, title: &str, heads: &[&str], rows: impl Iterator<Item = String>, none: &str) {
    let rows: String = rows.map(|row| format!("<tr>{row}</tr>\n")).collect();
    let _ = writeln!(out, "<h2>{title}</h2>");
    if rows.is_empty() {
        let _ = writeln!(out, "<p>{none}</p>");
        return;
    }
    let heads: String = heads.iter().map(|head| format!("<th>{head}</th>")).collect();
    let heads = if heads.is_empty() { heads } else { format!("<tr>{heads}</tr>\n") };
    let _ = writeln!(out, "<table>\n{heads}{rows}</table>");
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

/// A value for people, escaped.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror='a()'>\"&\u{202e}\u{1b}[0m";

    /// A page on which every text is hostile.
    fn hostile() -> String {
        let x = HOSTILE;
        let hang = json!({
            "service": x, "policy": x, "kind": "blocked", "sure": "certain", "why": x, "at": x, "since": x, "did": x,
            "pid": 7, "tid": 8,
        });
        let status = json!({
            "version": x, "config": x, "rejected": x, "at": x, "kept_of": x, "hangs": [hang, hang, hang],
            "policies": [{ "policy": x, "on_hang": x, "unusable": x }],
            "services": [{ "service": x, "policy": x, "processes": 1, "state": x }],
            "unwatched": [{ "service": x, "command": x, "policy": x, "why": x, "processes": 2 }],
            "kept": [{ "name": x, "mode": x, "pid": 1 }],
            "past": [{ "service": x, "why": x, "since": x, "over": x, "how": x, "did": x }],
            "agent": { "started": x, "cpu_seconds": 1.25, "resident_bytes": 3 << 20, "scan_seconds": 0.002 },
        });
        let drawn = why::Drawing { picture: "<svg/>".into(), text: x.into() };
        let detail = |drawing| Some(Arc::new(Detail { hang: json!(null), drawing, bytes: 0 }));
        let details = vec![detail(Ok(drawn)), detail(Err(x.into())), None];
        html(&View { host: x.into(), status, details }, "0a")
    }

    #[test]
    fn text_that_others_chose_is_only_text() {
        let page = hostile();
        for part in ["<img", "onerror='", "alert(1)</script>", "\u{202e}", "\u{1b}", " style=", " onclick"] {
            assert!(!page.contains(part), "{part}: {page}");
        }
        assert_eq!([page.matches("<script").count(), page.matches("</script>").count()], [1, 1], "{page}");
        assert_eq!(page.matches("</pre>").count(), 3, "one for each report: {page}");
        let shown = "&lt;script&gt;alert(1)&lt;/script&gt;";
        assert!(page.matches(shown).count() > 30, "all of it is shown: {page}");
    }

    #[test]
    fn it_is_xml() {
        let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parseString(sys.stdin.buffer.read())";
        let python = std::process::Command::new("python3")
            .args(["-c", parse])
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn();
        let Ok(mut python) = python else {
            println!("SKIP: needs python3");
            return;
        };
        std::io::Write::write_all(&mut python.stdin.take().expect("a pipe"), hostile().as_bytes()).expect("written");
        let done = python.wait_with_output().expect("a child");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn it_says_what_there_is_none_of() {
        let page = html(&View { host: "n1".into(), status: json!({}), details: Vec::new() }, "0a");
        for part in ["orbit agent on n1", "None is known.", "No process is selected.", "None since the agent began."] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
