//! A graph as a picture. All of it is XML; text that others chose is escaped.

use super::layout::{HEIGHT, MARGIN, WIDTH, place};
use super::{Edge, Graph, Kind, Mark, Node, escaped};
use std::fmt::Write;

/// Characters of a line that a box has room for.
const LINE: usize = 40;
/// Characters of a heading.
const HEADING: usize = 150;
/// Lines of what was found that a picture has; the rest is text.
const FACTS: usize = 6;
/// Height of a line of the heading.
const LINE_HEIGHT: i32 = 20;

/// How pictures look.
pub(crate) const STYLE: &str = "\
text{font:13px ui-monospace,DejaVu Sans Mono,monospace;fill:#222}\
.t{font-weight:bold}.s{font-size:11.5px;fill:#444}.e{font-size:11px;fill:#555}\
rect{fill:#fff;stroke:#888;stroke-width:1.3}.Lock rect,.File rect{fill:#eef2fb}\
.Pipe rect,.Socket rect{fill:#eef8ef}.Process rect{fill:#f3f0f8}\
.Busy rect{fill:#fff3cf;stroke:#b80}.Behind rect{stroke:#d70;stroke-width:2}\
.Ring rect{fill:#fdecec;stroke:#c00;stroke-width:3}\
path{fill:none;stroke:#777;stroke-width:1.4}path.red{stroke:#c00;stroke-width:3}\
.red .e,.bad{fill:#c00}a:hover rect{fill:#e8f4ff}\
.ground{stroke:none}.head{fill:#777;stroke:none}.redhead{fill:#c00;stroke:none}";

/// The picture as a file of its own: a box's stack shows while the pointer rests on it.
pub(crate) fn svg(graph: &Graph) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}", picture(graph, false))
}

/// The picture; `links`: a click on a box leads to its stack, `#s` and its number.
pub(super) fn picture(graph: &Graph, links: bool) -> String {
    drawn(graph, links, &format!("<style>{STYLE}</style>\n<defs>{}</defs>\n", heads()))
}

/// The picture for a page that has [`STYLE`] and [`heads`] itself.
pub(crate) fn bare(graph: &Graph) -> String {
    drawn(graph, false, "")
}

/// The heads of arrows.
pub(crate) fn heads() -> String {
    let head = |id| {
        format!(
            "<marker id=\"{id}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerUnits=\"userSpaceOnUse\" \
             markerWidth=\"11\" markerHeight=\"11\" orient=\"auto\"><path d=\"M0 1L9 5L0 9z\" class=\"{id}\"/></marker>"
        )
    };
    ["head", "redhead"].map(head).concat()
}

fn drawn(graph: &Graph, links: bool, shared: &str) -> String {
    let facts = graph.facts.len().min(FACTS);
    let top = MARGIN + LINE_HEIGHT * (facts as i32 + 2);
    let placed = place(graph, top);
    let (width, height) = (placed.width.max(WIDTH * 3), placed.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n{shared}",
        escaped(&graph.title)
    );
    let _ = writeln!(out, "<rect width=\"{width}\" height=\"{height}\" class=\"ground\"/>");
    let mut y = MARGIN;
    let _ = writeln!(out, "<text class=\"t\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", cut(&graph.title, HEADING));
    for fact in graph.facts.iter().take(facts) {
        y += LINE_HEIGHT;
        let class = if fact.starts_with("deadlock") || fact.contains("only for each other") { "bad" } else { "s" };
        let _ = writeln!(out, "<text class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", cut(fact, HEADING));
    }
    for (edge, is_back) in graph.edges.iter().zip(&placed.is_back) {
        arrow(&mut out, edge, placed.at[edge.from], placed.at[edge.to], *is_back);
    }
    for (n, node) in graph.nodes.iter().enumerate() {
        let (x, y) = placed.at[n];
        let has_stack = links && node.kind == Kind::Thread;
        if has_stack {
            let _ = write!(out, "<a href=\"#s{n}\">");
        }
        boxed(&mut out, node, x, y);
        out += if has_stack { "</a>\n" } else { "\n" };
    }
    out + "</svg>\n"
}

fn boxed(out: &mut String, node: &Node, x: i32, y: i32) {
    let class = format!(
        "{:?}{}",
        node.kind,
        if node.mark == Mark::Plain { String::new() } else { format!(" {:?}", node.mark) }
    );
    let whole: Vec<String> =
        [&node.title, &node.text].into_iter().chain(&node.stack).map(|line| escaped(line)).collect();
    let _ = write!(
        out,
        "<g class=\"{class}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         rx=\"{}\"/><text class=\"t\" x=\"{}\" y=\"{}\">{}</text><text class=\"s\" x=\"{}\" y=\"{}\">{}</text></g>",
        whole.join("\n"),
        if node.kind == Kind::Thread { 10 } else { 2 },
        x + 10,
        y + 20,
        cut(&node.title, LINE - 4),
        x + 10,
        y + 38,
        cut(&node.text, LINE),
    );
}

fn arrow(out: &mut String, edge: &Edge, from: (i32, i32), to: (i32, i32), is_back: bool) {
    let (class, head) = if edge.is_red { ("red", "redhead") } else { ("grey", "head") };
    let (path, (x, y)) = if is_back {
        let (a, b) = ((from.0 + WIDTH / 2, from.1 + HEIGHT), (to.0 + WIDTH / 2, to.1 + HEIGHT));
        let low = a.1.max(b.1) + HEIGHT * 3 / 2;
        (format!("M{} {}C{} {low} {} {low} {} {}", a.0, a.1, a.0, b.0, b.0, b.1), ((a.0 + b.0) / 2, low - HEIGHT / 3))
    } else {
        let (a, b) = ((from.0 + WIDTH, from.1 + HEIGHT / 2), (to.0, to.1 + HEIGHT / 2));
        let bend = ((b.0 - a.0) / 2).max(20);
        let path = format!("M{} {}C{} {} {} {} {} {}", a.0, a.1, a.0 + bend, a.1, b.0 - bend, b.1, b.0, b.1);
        (path, ((a.0 + b.0) / 2, (a.1 + b.1) / 2 - 5))
    };
    let _ = writeln!(
        out,
        "<g class=\"{class}\"><path class=\"{class}\" d=\"{path}\" marker-end=\"url(#{head})\"/>\
         <text class=\"e\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text></g>",
        escaped(edge.text)
    );
}

/// At most so many characters, escaped.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => escaped(text),
        Some((end, _)) => escaped(&text[..end]) + "…",
    }
}
