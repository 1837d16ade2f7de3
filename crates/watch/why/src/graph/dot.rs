//! A graph as text for Graphviz.

use super::{Graph, Kind, Mark};
use std::fmt::Write;

/// The graph in Graphviz' language.
pub(crate) fn dot(graph: &Graph) -> String {
    let mut out = format!(
        "digraph why {{\n  rankdir=LR;\n  label={};\n  node [fontname=monospace, style=filled, fillcolor=white];\n",
        quoted(&graph.title)
    );
    for (n, node) in graph.nodes.iter().enumerate() {
        let shape = match node.kind {
            Kind::Thread => "box, style=\"rounded,filled\"",
            Kind::Process => "box3d",
            Kind::Lock | Kind::Pipe | Kind::Socket | Kind::File => "box",
        };
        let mark = match node.mark {
            Mark::Plain => "",
            Mark::Busy => ", fillcolor=lightyellow",
            Mark::Behind => ", color=orange",
            Mark::Ring => ", color=red, penwidth=3",
        };
        let label = quoted(&format!("{}\n{}", node.title, node.text));
        let _ =
            writeln!(out, "  n{n} [shape={shape}, label={label}, tooltip={}{mark}];", quoted(&node.stack.join("\n")));
    }
    for edge in &graph.edges {
        let red = if edge.is_red { ", color=red, penwidth=3" } else { "" };
        let _ = writeln!(out, "  n{} -> n{} [label={}{red}];", edge.from, edge.to, quoted(edge.text));
    }
    out + "}\n"
}

/// A string of Graphviz': a backslash begins an escape there, so each is doubled.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_stay_text() {
        assert_eq!(quoted("a\"b\\N\nc"), "\"a\\\"b\\\\N\\nc\"");
    }
}
