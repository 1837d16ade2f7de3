//! A graph as one page: the picture, and under it the stack of the box that was clicked. It has no
//! script and loads nothing, which its own policy also forbids; it is XML too.

use super::svg::picture;
use super::{Graph, Kind, escaped};
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}\
pre{font:13px ui-monospace,DejaVu Sans Mono,monospace;background:#f6f6f6;padding:.8em;overflow:auto}\
.stack{display:none}.stack:target{display:block;border-left:4px solid #06c;padding-left:1em}\
.picture{overflow:auto;border:1px solid #ddd}.bad{color:#c00}\
@media print{.stack{display:block}}";

/// The page; `headline` is a report's sentence, `text` is what `orbit why` prints.
pub(crate) fn html(graph: &Graph, headline: Option<&str>, text: &str) -> String {
    let title = escaped(&graph.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    if let Some(headline) = headline {
        let _ = writeln!(out, "<p class=\"bad\"><strong>{}</strong></p>", escaped(headline));
    }
    out += "<ul>\n";
    for fact in &graph.facts {
        let _ = writeln!(out, "<li>{}</li>", escaped(fact));
    }
    let _ = write!(
        out,
        "</ul>\n<p>Red: waits for itself. Orange: waits for what is red. Yellow: uses a CPU. A click on a thread shows \
         its stack below the picture.</p>\n<div class=\"picture\">\n{}</div>\n",
        picture(graph, true)
    );
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.kind == Kind::Thread) {
        let stack: Vec<String> = node.stack.iter().map(|line| escaped(line)).collect();
        let stack = if stack.is_empty() { "its stack was not read".to_owned() } else { stack.join("\n") };
        let _ = writeln!(
            out,
            "<section class=\"stack\" id=\"s{n}\"><h2>{}</h2><p>{}</p><pre>{stack}</pre></section>",
            escaped(&node.title),
            escaped(&node.text)
        );
    }
    let lines: Vec<String> = text.lines().map(escaped).collect();
    let _ = write!(
        out,
        "<details><summary>The same as text</summary><pre>{}</pre></details>\n</body>\n</html>\n",
        lines.join("\n")
    );
    out
}
