//! Where each box is drawn: in columns, so that arrows lead to the right; those that would close a
//! circle lead back below. Boxes without arrows stand below all others, in rows.
//!
//! Pure. Cost: linear in boxes and arrows, but for a few rounds in which columns are ordered.

use super::Graph;

/// Size of a box, and of the room between two.
pub(super) const WIDTH: i32 = 300;
pub(super) const HEIGHT: i32 = 48;
const GAP_X: i32 = 130;
const GAP_Y: i32 = 26;
/// Room around the picture, and above it for the heading.
pub(super) const MARGIN: i32 = 24;
/// Columns of boxes without arrows, at least.
const COLUMNS: i32 = 3;
/// Rounds of ordering.
const ROUNDS: usize = 4;

/// Where boxes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// The upper left corner of each box.
    pub(super) at: Vec<(i32, i32)>,
    /// Whether an arrow leads back.
    pub(super) is_back: Vec<bool>,
    pub(super) width: i32,
    pub(super) height: i32,
}

/// Places a graph's boxes below `top`.
pub(super) fn place(graph: &Graph, top: i32) -> Placed {
    let count = graph.nodes.len();
    let is_back = backs(graph);
    let forward: Vec<(usize, usize)> =
        graph.edges.iter().zip(&is_back).filter(|(_, back)| !**back).map(|(edge, _)| (edge.from, edge.to)).collect();
    let layer = layers(count, &forward);
    let is_tied = |n: usize| graph.edges.iter().any(|edge| edge.from == n || edge.to == n);
    let mut columns: Vec<Vec<usize>> = Vec::new();
    for n in (0..count).filter(|n| is_tied(*n)) {
        if columns.len() <= layer[n] {
            columns.resize(layer[n] + 1, Vec::new());
        }
        columns[layer[n]].push(n);
    }
    order(&mut columns, &forward, count);
    let tallest = columns.iter().map(Vec::len).max().unwrap_or(0) as i32;
    let mut at = vec![(0, 0); count];
    for (x, column) in (0..).zip(&columns) {
        // In the middle of the tallest.
        let first = top + (tallest - column.len() as i32) * (HEIGHT + GAP_Y) / 2;
        for (y, n) in (0..).zip(column) {
            at[*n] = (MARGIN + x * (WIDTH + GAP_X), first + y * (HEIGHT + GAP_Y));
        }
    }
    let bends = if is_back.contains(&true) { HEIGHT * 2 } else { 0 };
    let below = top + tallest * (HEIGHT + GAP_Y) + bends;
    let across = (columns.len() as i32).max(COLUMNS);
    let mut alone = 0;
    for n in (0..count).filter(|n| !is_tied(*n)) {
        at[n] = (MARGIN + alone % across * (WIDTH + GAP_X), below + alone / across * (HEIGHT + GAP_Y));
        alone += 1;
    }
    let rows = (alone + across - 1) / across;
    let width = MARGIN * 2 + across * (WIDTH + GAP_X) - GAP_X;
    Placed { at, is_back, width, height: below + rows * (HEIGHT + GAP_Y) + MARGIN }
}

/// Arrows that lead back to a box from which one came: without them there is no circle.
fn backs(graph: &Graph) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let out: Vec<Vec<usize>> = (0..graph.nodes.len())
        .map(|n| (0..graph.edges.len()).filter(|e| graph.edges[*e].from == n).collect())
        .collect();
    let mut state = vec![State::New; graph.nodes.len()];
    let mut is_back = vec![false; graph.edges.len()];
    for root in 0..graph.nodes.len() {
        if state[root] != State::New {
            continue;
        }
        state[root] = State::Open;
        let mut path = vec![(root, 0)];
        while let Some((node, next)) = path.last_mut() {
            let Some(edge) = out[*node].get(*next).copied() else {
                state[*node] = State::Done;
                path.pop();
                continue;
            };
            *next += 1;
            let to = graph.edges[edge].to;
            match state[to] {
                State::New => {
                    state[to] = State::Open;
                    path.push((to, 0));
                }
                State::Open => is_back[edge] = true,
                State::Done => {}
            }
        }
    }
    is_back
}

/// The column of each box: one more than the farthest that leads to it.
fn layers(count: usize, forward: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0; count];
    // Without a circle no way is longer than there are boxes.
    for _ in 0..count {
        let mut changed = false;
        for &(from, to) in forward {
            if layer[to] <= layer[from] {
                layer[to] = layer[from] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    layer
}

/// Orders each column by the middle of what leads to its boxes.
fn order(columns: &mut [Vec<usize>], forward: &[(usize, usize)], count: usize) {
    let mut row = vec![0.0; count];
    for _ in 0..ROUNDS {
        for column in columns.iter_mut() {
            let middle = |n: usize| {
                let from: Vec<f64> = forward.iter().filter(|(_, to)| *to == n).map(|(from, _)| row[*from]).collect();
                if from.is_empty() { row[n] } else { from.iter().sum::<f64>() / from.len() as f64 }
            };
            let mut sorted: Vec<(f64, usize)> = column.iter().map(|n| (middle(*n), *n)).collect();
            sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
            *column = sorted.into_iter().map(|(_, n)| n).collect();
            let half = column.len() as f64 / 2.0;
            for (y, n) in column.iter().enumerate() {
                row[*n] = y as f64 - half;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Edge, Kind, Mark, Node};
    use super::*;

    fn graph(count: usize, edges: &[(usize, usize)]) -> Graph {
        let node = Node {
            kind: Kind::Lock,
            title: String::new(),
            text: String::new(),
            stack: Vec::new(),
            mark: Mark::Plain,
            pid: 0,
            is_bound: false,
        };
        let edge = |&(from, to): &(usize, usize)| Edge { from, to, text: "", is_red: false };
        Graph { nodes: vec![node; count], edges: edges.iter().map(edge).collect(), ..Graph::default() }
    }

    #[test]
    fn boxes_do_not_overlap_and_lie_inside() {
        // A ring of four, three that wait for it, five alone.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 1), (5, 1), (6, 3)];
        let graph = graph(12, &edges);
        let placed = place(&graph, 60);
        for (n, a) in placed.at.iter().enumerate() {
            assert!(
                a.0 >= 0 && a.1 >= 60 && a.0 + WIDTH <= placed.width && a.1 + HEIGHT <= placed.height,
                "{placed:?}"
            );
            for b in &placed.at[n + 1..] {
                assert!((a.0 - b.0).abs() >= WIDTH || (a.1 - b.1).abs() >= HEIGHT, "{a:?} {b:?}");
            }
        }
        assert_eq!(placed.is_back.iter().filter(|back| **back).count(), 1, "{placed:?}");
        for (edge, back) in graph.edges.iter().zip(&placed.is_back) {
            assert!(*back || placed.at[edge.from].0 < placed.at[edge.to].0, "{placed:?}");
        }
    }

    #[test]
    fn of_nothing_there_is_an_empty_picture() {
        let placed = place(&graph(0, &[]), 10);
        assert!(placed.at.is_empty() && placed.width > 0 && placed.height > 0);
    }
}
