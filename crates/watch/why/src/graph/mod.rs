//! Who waits for whom, as a graph: threads, locks, pipes, sockets, files, processes.
//!
//! Owns: [`Graph`], built from samples, and what is marked in it. Promises: pure; what is drawn red
//! is a ring that the sample proved, or threads all of whose ways out lead back to themselves as
//! far as the sample shows, which the heading says. A wait with a time limit, one whose other end
//! is not in sight, and a process of which not every thread waits so are never red. Writers:
//!
//! | file | what it writes |
//! |---|---|
//! | `layout` | where each box is drawn |
//! | `svg` | a picture |
//! | `html` | the picture with stacks, in one file without scripts |
//! | `dot` | text for Graphviz |

mod dot;
mod html;
mod layout;
mod svg;

pub(crate) use dot::dot;
pub(crate) use html::html;
pub(crate) use svg::{STYLE, bare, heads, svg};

use crate::groups::groups;
use crate::sample::{Sample, Thread};
use crate::show::{does, sentence};
use orbit_console::harmless::Harmless;
use orbit_inspect::contention::{Contention, Holder};
use orbit_inspect::stacks::fold;
use orbit_inspect::waits::{FutexKind, Owner, Wait};
use std::collections::{BTreeMap, BTreeSet};

/// Boxes for threads that are drawn; how many more there are is said.
const MAX_THREADS: usize = 96;
/// Lines of a stack.
const MAX_STACK: usize = 64;
/// Threads that the heading of a box names.
const NAMED: usize = 4;

/// What a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A thread, or several with the same stack and the same wait.
    Thread,
    /// A lock in memory.
    Lock,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A file with a lock.
    File,
    /// A process, of which it is not known which thread ends a wait.
    Process,
}

/// How a box is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Not.
    Plain,
    /// It uses a CPU.
    Busy,
    /// It waits for what is red.
    Behind,
    /// It is part of what waits for itself.
    Ring,
}

/// A box. Its texts are harmless, and not escaped for any format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// `thread 4711 (worker)`.
    pub(crate) title: String,
    /// What it does or waits for; which thread holds it.
    pub(crate) text: String,
    /// Its stack, a line a frame; empty but for threads.
    pub(crate) stack: Vec<String>,
    pub(crate) mark: Mark,
    /// Its process; of what is no process' own 0.
    pid: i32,
    /// It may not get on but by what its edges lead to.
    is_bound: bool,
}

/// An arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) text: &'static str,
    pub(crate) is_red: bool,
}

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Graph {
    /// The process and its command.
    pub(crate) title: String,
    /// What was found, in sentences.
    pub(crate) facts: Vec<String>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: Vec<Edge>,
}

impl Graph {
    /// The graph of samples of one moment, the process that was asked for first.
    pub(crate) fn of(samples: &[Sample]) -> Graph {
        let mut making = Making { samples, ..Making::default() };
        for sample in samples {
            making.threads_of(sample);
        }
        for (sample, thread, node) in std::mem::take(&mut making.drawn) {
            making.wait_of(sample, thread, node);
        }
        making.members();
        let mut graph = making.graph;
        let first = samples.first();
        graph.title = first.map_or_else(String::new, |s| format!("process {}: {}", s.pid, Harmless(&s.command)));
        let proven = samples.iter().any(|s| !s.rings.is_empty() || !s.runtime.rings().is_empty());
        graph.facts = samples.iter().flat_map(facts).collect();
        let count = mark(&mut graph);
        if count > 0 && !proven {
            graph.facts.insert(0, format!("{count} boxes wait only for each other, as far as one sample shows"));
        }
        if making.left_out > 0 {
            graph.facts.push(format!("{} more groups of threads are not drawn", making.left_out));
        }
        graph
    }
}

/// What a sample says beside its threads.
fn facts(sample: &Sample) -> Vec<String> {
    let mut all: Vec<String> = sample.rings.iter().map(|ring| format!("deadlock: {ring}")).collect();
    all.extend(sample.runtime.rings().iter().map(|ring| {
        let waits: Vec<String> = ring.iter().map(|edge| format!("thread {} waits for {edge}", edge.waiter)).collect();
        format!("deadlock: {} (certain)", waits.join("; "))
    }));
    all.extend(sample.locks.iter().map(|(lock, name)| format!("lock: {}", sentence(lock, name.as_deref()))));
    all.extend(sample.runtime.gil.map(|tid| format!("Python's global lock (GIL) is held by thread {tid}")));
    all.extend(sample.unreaped());
    all.extend(sample.lacks.iter().map(|lack| format!("not seen: {lack}")));
    all.into_iter().map(|text| Harmless(text).to_string()).collect()
}

/// A graph that is being made.
#[derive(Default)]
struct Making<'a> {
    samples: &'a [Sample],
    graph: Graph,
    /// Boxes of threads by process and thread.
    threads: BTreeMap<(i32, i32), usize>,
    /// Other boxes by what they stand for.
    others: BTreeMap<String, usize>,
    /// Threads whose wait is to be drawn yet: one of each group.
    drawn: Vec<(&'a Sample, &'a Thread, usize)>,
    left_out: usize,
}

impl<'a> Making<'a> {
    fn add(&mut self, kind: Kind, pid: i32, title: String, text: String) -> usize {
        let (title, text) = (Harmless(title).to_string(), Harmless(text).to_string());
        let node = Node { kind, title, text, stack: Vec::new(), mark: Mark::Plain, pid, is_bound: false };
        self.graph.nodes.push(node);
        self.graph.nodes.len() - 1
    }

    fn other(&mut self, kind: Kind, pid: i32, key: String, title: String, text: String) -> usize {
        match self.others.get(&key) {
            Some(node) => *node,
            None => {
                let node = self.add(kind, pid, title, text);
                self.others.insert(key, node);
                node
            }
        }
    }

    fn edge(&mut self, from: usize, to: usize, text: &'static str) {
        let edge = Edge { from, to, text, is_red: false };
        if !self.graph.edges.contains(&edge) {
            self.graph.edges.push(edge);
        }
    }

    /// A box for each group of threads that do the same and wait for the same.
    fn threads_of(&mut self, sample: &'a Sample) {
        for group in groups(&sample.threads) {
            let mut by_wait: Vec<(String, Vec<&Thread>)> = Vec::new();
            for thread in group.iter().map(|place| &sample.threads[*place]) {
                // How much of a CPU is no difference.
                let does = if thread.is_busy() { "uses a CPU".to_owned() } else { does(sample, thread) };
                match by_wait.iter_mut().find(|(wait, _)| *wait == does) {
                    Some((_, members)) => members.push(thread),
                    None => by_wait.push((does, vec![thread])),
                }
            }
            for (does, members) in by_wait {
                if self.drawn.len() >= MAX_THREADS {
                    self.left_out += 1;
                    continue;
                }
                let named: Vec<String> = members.iter().take(NAMED).map(|t| t.tid.to_string()).collect();
                let more = if members.len() > NAMED { ", ..." } else { "" };
                let of = if self.samples.len() > 1 { format!(" of {}", sample.pid) } else { String::new() };
                let title = match members.len() {
                    1 => format!("thread {}{of} ({})", named[0], members[0].name),
                    n => format!("{n} threads{of}: {}{more} ({})", named.join(", "), members[0].name),
                };
                let node = self.add(Kind::Thread, sample.pid, title, does);
                self.graph.nodes[node].stack = stack(members[0]);
                // On a loaded machine one that computes may get no CPU in the whole interval.
                if members[0].is_busy() || members[0].wait == Wait::Running {
                    self.graph.nodes[node].mark = Mark::Busy;
                }
                if members.iter().any(|thread| thread.in_ring) {
                    self.graph.nodes[node].mark = Mark::Ring;
                }
                self.threads.extend(members.iter().map(|thread| ((sample.pid, thread.tid), node)));
                self.drawn.push((sample, members[0], node));
            }
        }
    }

    /// The box of a thread, or of its process where that was not read.
    fn thread(&mut self, pid: i32, tid: i32) -> usize {
        match self.threads.get(&(pid, tid)) {
            Some(node) => *node,
            None => self.process(pid),
        }
    }

    fn process(&mut self, pid: i32) -> usize {
        let own = self.samples.iter().find(|s| s.pid == pid).map(|s| &s.command);
        let command = own.or_else(|| self.samples.iter().find_map(|s| s.commands.get(&pid)));
        let command = command.cloned().unwrap_or_default();
        self.other(Kind::Process, pid, format!("process {pid}"), format!("process {pid}"), command)
    }

    /// What a thread waits for, as arrows.
    fn wait_of(&mut self, sample: &Sample, thread: &Thread, node: usize) {
        let pid = sample.pid;
        if thread.is_busy() {
            return;
        }
        if let Some(edge) = sample.runtime.edge(thread.tid) {
            let title = format!("{} {:#x}", edge.kind, edge.at);
            let lock = self.other(Kind::Lock, pid, format!("runtime {pid} {:#x}", edge.at), title, String::new());
            let holder = self.thread(pid, edge.holder);
            self.edge(node, lock, "waits for");
            self.edge(lock, holder, "held by");
            self.binds(&[node, lock]);
            return;
        }
        if sample.runtime.gil_waiters.contains(&thread.tid) {
            let title = "Python's global lock (GIL)".to_owned();
            let lock = self.other(Kind::Lock, pid, format!("gil {pid}"), title, String::new());
            self.edge(node, lock, "waits for");
            // Its waits have a time limit, so nothing here is bound.
            if let Some(holder) = sample.runtime.gil {
                let holder = self.thread(pid, holder);
                self.edge(lock, holder, "held by");
            }
            return;
        }
        match &thread.wait {
            Wait::Futex(futex) => match futex.kind {
                FutexKind::Join(Owner::Thread { pid, tid }) => {
                    let other = self.thread(pid, tid);
                    self.edge(node, other, "waits for its end");
                    self.bind(node, !futex.call.timed);
                }
                FutexKind::Mutex { .. } | FutexKind::RwLock { .. } => {
                    let of = |(lock, _): &&(Contention, _)| lock.waiters.contains(&thread.tid);
                    let Some((contention, name)) = sample.locks.iter().find(of) else { return };
                    let lock = self.lock(pid, futex.lock_key(), contention, name.as_deref());
                    self.edge(node, lock, "waits for");
                    self.bind(node, !futex.call.timed);
                }
                _ => {}
            },
            Wait::Pipe { ino, peers, named, .. } => {
                let title = format!("{}pipe {ino}", if *named { "named " } else { "" });
                let pipe = self.other(Kind::Pipe, 0, format!("pipe {ino}"), title, String::new());
                self.edge(node, pipe, "waits at");
                self.ends(pipe, peers);
                self.bind(node, true);
                self.bind(pipe, !*named && !peers.is_empty());
            }
            Wait::Fifo { path, .. } => {
                let fifo = self.other(Kind::Pipe, 0, format!("fifo {path}"), "FIFO to be opened".into(), path.clone());
                self.edge(node, fifo, "waits to open");
            }
            Wait::Socket { ino, local, remote, peers, .. } => {
                let text = [local, remote].map(|end| end.clone().unwrap_or_default()).join(" ");
                let socket = self.other(Kind::Socket, 0, format!("socket {ino}"), format!("socket {ino}"), text);
                self.edge(node, socket, "waits at");
                self.ends(socket, peers);
                self.bind(node, !peers.is_empty());
                self.bind(socket, !peers.is_empty());
            }
            Wait::FileLock { path, owner } => {
                let file = self.other(Kind::File, 0, format!("file {path}"), "locked file".into(), path.clone());
                self.edge(node, file, "waits for");
                self.ends(file, owner.as_slice());
                self.bind(node, true);
                self.bind(file, owner.is_some());
            }
            Wait::Child { pids } => {
                for child in pids {
                    let child = self.process(*child);
                    self.edge(node, child, "waits for its end");
                }
                self.bind(node, !pids.is_empty());
            }
            Wait::Traced { by } if *by != 0 => {
                let by = self.process(*by);
                self.edge(node, by, "traced by");
            }
            _ => {}
        }
    }

    fn lock(&mut self, pid: i32, key: orbit_inspect::waits::Key, lock: &Contention, name: Option<&str>) -> usize {
        let kind = if matches!(lock.kind, FutexKind::RwLock { .. }) { "rwlock" } else { "mutex" };
        let title = format!("{kind} {}", name.map_or_else(|| format!("{:#x}", lock.lock), str::to_owned));
        let text = match lock.holder {
            Holder::Named(Owner::Thread { .. }) => String::new(),
            Holder::Named(Owner::Gone { tid }) => format!("held by thread {tid}, which has exited"),
            Holder::Named(Owner::Forked { parent, .. }) => format!("held in the parent {parent} at the fork"),
            Holder::OwnHandler { .. } => "probably held by what the handler interrupted".to_owned(),
            Holder::Readers { count } => format!("held by {count} for reading"),
            Holder::Named(Owner::Unknown) | Holder::Unknown => "holder not known".to_owned(),
        };
        let node = self.other(Kind::Lock, pid, format!("lock {key:?}"), title, text);
        let (holder, is_certain) = match lock.holder {
            Holder::Named(Owner::Thread { pid, tid }) => (self.thread(pid, tid), true),
            Holder::OwnHandler { tid } => (self.thread(pid, tid), false),
            _ => return node,
        };
        self.edge(node, holder, if is_certain { "held by" } else { "probably held by" });
        self.bind(node, true);
        node
    }

    fn ends(&mut self, at: usize, pids: &[i32]) {
        for pid in pids {
            let end = self.process(*pid);
            self.edge(at, end, "other end");
        }
    }

    fn bind(&mut self, node: usize, is_bound: bool) {
        self.graph.nodes[node].is_bound = is_bound;
    }

    fn binds(&mut self, nodes: &[usize]) {
        nodes.iter().for_each(|node| self.bind(*node, true));
    }

    /// Ties the process that a wait leads to to its threads: any of them may end it.
    fn members(&mut self) {
        let processes: Vec<(usize, i32)> =
            self.others.values().map(|node| (*node, self.graph.nodes[*node].pid)).collect();
        for (node, pid) in processes {
            if self.graph.nodes[node].kind != Kind::Process {
                continue;
            }
            let own: BTreeSet<usize> = self.threads.range((pid, 0)..=(pid, i32::MAX)).map(|(_, node)| *node).collect();
            let of = |sample: &Sample| sample.pid == pid && sample.threads.len() == self.count(pid);
            let is_whole = !own.is_empty() && self.samples.iter().any(of);
            own.into_iter().for_each(|thread| self.edge(node, thread, "its thread"));
            self.bind(node, is_whole);
        }
    }

    /// Threads of a process that are drawn.
    fn count(&self, pid: i32) -> usize {
        self.threads.range((pid, 0)..=(pid, i32::MAX)).count()
    }
}

fn stack(thread: &Thread) -> Vec<String> {
    let python = thread.python.iter().map(|line| format!("{line} (Python)"));
    let (lines, left) = fold::shown(&thread.frames, MAX_STACK);
    let mut all: Vec<String> = python.take(MAX_STACK).chain(lines.iter().map(ToString::to_string)).collect();
    if left > 0 {
        all.push(format!("and {left} more frames"));
    }
    all.iter().map(|line| Harmless(line).to_string()).collect()
}

/// Marks what waits for itself, and what waits for that; answers how many boxes the former are.
fn mark(graph: &mut Graph) -> usize {
    let Graph { nodes, edges, .. } = graph;
    let out = |of: usize| edges.iter().filter(move |edge| edge.from == of).map(|edge| edge.to);
    // All that can get on by nothing but each other: what has another way out is taken away until
    // nothing changes.
    let mut stuck: BTreeSet<usize> =
        (0..nodes.len()).filter(|n| nodes[*n].is_bound && out(*n).next().is_some()).collect();
    loop {
        let free: Vec<usize> = stuck.iter().copied().filter(|n| out(*n).any(|to| !stuck.contains(&to))).collect();
        if free.is_empty() {
            break;
        }
        stuck.retain(|n| !free.contains(n));
    }
    let reached = |from: usize| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(out(at).filter(|to| stuck.contains(to) && seen.insert(*to)));
        }
        seen
    };
    let reach: BTreeMap<usize, BTreeSet<usize>> = stuck.iter().map(|n| (*n, reached(*n))).collect();
    let together = |a: usize, b: usize| {
        let leads = |a: usize, b: usize| reach.get(&a).is_some_and(|seen| seen.contains(&b));
        leads(a, b) && leads(b, a)
    };
    let red: BTreeSet<usize> = stuck.iter().copied().filter(|n| together(*n, *n)).collect();
    let marks: Vec<Mark> = (0..nodes.len())
        .map(|n| match nodes[n].mark {
            Mark::Plain | Mark::Ring if red.contains(&n) => Mark::Ring,
            Mark::Plain if stuck.contains(&n) => Mark::Behind,
            other => other,
        })
        .collect();
    let reds: Vec<bool> = edges.iter().map(|edge| together(edge.from, edge.to)).collect();
    edges.iter_mut().zip(reds).for_each(|(edge, red)| edge.is_red = red);
    nodes.iter_mut().zip(marks).for_each(|(node, mark)| node.mark = mark);
    red.len()
}

/// Text for XML and HTML: of characters that people read, as [`Harmless`] leaves them.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in Harmless(text).to_string().chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(bound: &[bool], edges: &[(usize, usize)]) -> Graph {
        let node = |is_bound: &bool| Node {
            kind: Kind::Thread,
            title: String::new(),
            text: String::new(),
            stack: Vec::new(),
            mark: Mark::Plain,
            pid: 1,
            is_bound: *is_bound,
        };
        let edge = |&(from, to): &(usize, usize)| Edge { from, to, text: "", is_red: false };
        Graph { nodes: bound.iter().map(node).collect(), edges: edges.iter().map(edge).collect(), ..Graph::default() }
    }

    fn marks(mut graph: Graph) -> (usize, Vec<Mark>, Vec<bool>) {
        let count = mark(&mut graph);
        (count, graph.nodes.iter().map(|n| n.mark).collect(), graph.edges.iter().map(|e| e.is_red).collect())
    }

    #[test]
    fn a_ring_is_red_and_what_waits_for_it_is_behind() {
        let (count, marks, red) = marks(graph(&[true; 3], &[(0, 1), (1, 0), (2, 0)]));
        assert_eq!(count, 2);
        assert_eq!(marks, [Mark::Ring, Mark::Ring, Mark::Behind]);
        assert_eq!(red, [true, true, false]);
    }

    #[test]
    fn one_way_out_and_nothing_is_red() {
        // The pipe 1 has two other ends: 0, which waits for it, and 2, which runs.
        let (count, marks, red) = marks(graph(&[true, true, false], &[(0, 1), (1, 0), (1, 2)]));
        assert_eq!((count, red), (0, vec![false; 3]));
        assert_eq!(marks, [Mark::Plain; 3]);
    }

    #[test]
    fn text_is_escaped_and_holds_no_control_character() {
        assert_eq!(escaped("<a b='\"'>&\u{1b}[0m"), "&lt;a b=&#39;&quot;&#39;&gt;&amp;\\u{1b}[0m");
        assert!(!escaped("\u{202e}\u{fffe}\0").contains(['\u{202e}', '\u{fffe}', '\0']));
    }
}
