//! `orbit bench why`: what `orbit why` names of a hung program, beside py-spy, gdb, jstack and Go's
//! own answer to SIGQUIT.
//!
//! Twelve programs hang in a way that is known: which threads wait, for which lock, the lock's
//! holder, in which function of the program, and whether that is a deadlock. A tool names such a
//! fact if the words that say so are in its output: see [`facts`].

mod facts;

use super::ahd::scratch::{Scratch, catch_signals, go_on, has};
use super::plot::Bars;
use super::reach::Reach;
use super::row::Measured;
use super::stats::Samples;
use super::{Bench, Common, Progress, orbit_command};
use facts::{FACTS, Program, TARGETS, Target};
use orbit_console::out::{Align, Done, Failure, PLAIN, Table};
use orbit_linux::child::Exit;
use orbit_linux::{procfs, signals};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Compares what `orbit why` and other tools say of twelve programs that hang.
///
/// Needs cc, python3, java with javac, and go; what is not installed is left out, and said. py-spy
/// (`pip install py-spy`), gdb and jstack are asked where they are installed.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// Time that a program gets to hang once it is ready to.
const SETTLES: Duration = Duration::from_millis(1500);
/// Time for the output of Go's runtime to be whole.
const DUMPS: Duration = Duration::from_secs(1);

/// The tools, ours first, with the commands that are run.
const TOOLS: [(&str, &str); 5] = [
    ("orbit why", "orbit why PID"),
    ("py-spy", "py-spy dump --pid PID"),
    ("gdb", "gdb -nx -batch -p PID -ex 'info threads' -ex 'thread apply all bt'"),
    ("jstack", "jstack PID"),
    ("SIGQUIT", "kill -QUIT PID"),
];

/// What a row has beside the shared fields.
#[derive(Serialize)]
struct Own {
    /// The facts that there are to name.
    asked: Vec<&'static str>,
    /// Of each tool that was asked, those that it named.
    named: Vec<(&'static str, Vec<&'static str>)>,
}

pub fn run(args: &Args) -> Done {
    let mut bench = Bench::start("why", &args.common)?;
    catch_signals();
    let scratch = Scratch::new()?;
    for (tool, command) in TOOLS {
        bench.note(format!("{tool}: `{command}`"));
    }
    for tool in ["py-spy", "gdb", "jstack"].into_iter().filter(|tool| !has(tool)) {
        bench.note(format!("{tool} is not installed: it was not asked"));
    }
    bench.note(
        "a tool names a fact if the words that say so are in its output: this project chose the facts and the \
         words, and wrote the programs (tools/bench/src/why/facts.rs)"
            .to_owned(),
    );
    bench.note(
        "gdb is asked once, without its extension for Python; what it names of libraries depends on their debug \
         information"
            .to_owned(),
    );
    bench.note("a holder counts also where a tool says only that it is likely, as `orbit why` does of Go".to_owned());
    let heads: Vec<(&str, Align)> =
        ["PROGRAM", "FACTS"].into_iter().chain(TOOLS.map(|(tool, _)| tool)).map(|head| (head, Align::Left)).collect();
    let (mut table, mut rows, mut groups) = (Table::new(&heads), Vec::new(), Vec::new());
    let progress = Progress::new(TARGETS.len());
    for (nth, target) in TARGETS.iter().enumerate() {
        go_on()?;
        progress.at(nth, target.name);
        if let Some(lacking) = target.needs().iter().find(|tool| !has(tool)) {
            bench.note(format!("{}: left out, needs {lacking}", target.name));
            continue;
        }
        let hung = Hung::start(target, &scratch)?;
        let asked: Vec<&str> = FACTS.into_iter().filter(|fact| !target.words(fact).is_empty()).collect();
        let named: Vec<(&str, Vec<&str>)> = TOOLS
            .into_iter()
            .filter(|(tool, _)| target.is_for(tool) && (["orbit why", "SIGQUIT"].contains(tool) || has(tool)))
            .map(|(tool, _)| {
                let said = hung.ask(tool)?;
                Ok((tool, asked.iter().copied().filter(|fact| hung.names(target.words(fact), &said)).collect()))
            })
            .collect::<Result<_, Failure>>()?;
        let count = |tool: &str| named.iter().find(|(name, _)| *name == tool).map(|(_, facts)| facts.len() as f64);
        let shown = |tool: &str| match named.iter().find(|(name, _)| *name == tool) {
            Some((_, facts)) => facts.join(", "),
            None => "-".to_owned(),
        };
        let mut cells = vec![(target.name.to_owned(), PLAIN), (asked.join(", "), PLAIN)];
        cells.extend(TOOLS.map(|(tool, _)| (shown(tool), PLAIN)));
        table.row(cells);
        let ours = count(TOOLS[0].0).unwrap_or(0.0);
        let best = TOOLS[1..].iter().filter_map(|(tool, _)| count(tool)).fold(0.0, f64::max);
        let what = format!("{}: facts named, beside the best other tool", target.name);
        let bound = [Reach::at_least(what, ours, best, "facts")];
        let figure = |count: Option<f64>| {
            let mut samples = Samples::default();
            count.into_iter().for_each(|count| samples.add_figure(count));
            samples.summary()
        };
        groups.push((target.name.to_owned(), TOOLS.map(|(tool, _)| count(tool)).to_vec()));
        let counts = TOOLS.map(|(tool, _)| (tool, figure(count(tool))));
        let measure = format!("{}: facts named, of {}", target.name, asked.len());
        let row = Measured::new(measure, "facts", Own { asked, named });
        let row = counts[1..].iter().fold(row.ours(counts[0].1), |row, (tool, figure)| row.rival(tool, *figure));
        rows.push(row.reach(&bound));
        bench.reach(bound);
    }
    progress.finish();
    let chart = Bars {
        title: "Facts named of a hung program".to_owned(),
        series: TOOLS.map(|(tool, _)| tool.to_owned()).to_vec(),
        groups,
    };
    bench.finish(&args.common, &rows, &table, chart)
}

/// A program that hangs, killed with its children at the end.
struct Hung {
    child: Child,
    /// The process that is asked about.
    pid: i32,
    /// What stands for the names in braces: thread and process ids.
    ids: BTreeMap<String, i32>,
    errors: PathBuf,
}

impl Hung {
    fn start(target: &Target, scratch: &Scratch) -> Result<Hung, Failure> {
        let errors = scratch.path("errors");
        let mut child = command(target, scratch)?
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors)?)
            .spawn()?;
        let (main, stdout) = (child.id() as i32, child.stdout.take());
        let mut hung = Hung { child, pid: main, ids: BTreeMap::from([("main".to_owned(), main)]), errors };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line != "ready\n" {
            return Err(Failure::text(format!("{} did not begin to hang", target.name)));
        }
        std::thread::sleep(SETTLES);
        let children = procfs::text(format!("/proc/{main}/task/{main}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next().and_then(|pid| pid.parse().ok()) {
            hung.ids.insert("child".to_owned(), child);
            hung.pid = if target.is_of_child { child } else { main };
        }
        for tid in procfs::ids(format!("/proc/{main}/task")) {
            let name = procfs::text(format!("/proc/{main}/task/{tid}/comm")).unwrap_or_default();
            hung.ids.entry(name.trim_end().to_owned()).or_insert(tid);
        }
        Ok(hung)
    }

    /// What a tool says.
    fn ask(&self, tool: &str) -> Result<String, Failure> {
        let pid = self.pid.to_string();
        let mut command = match tool {
            "SIGQUIT" => {
                signals::send(self.pid, libc::SIGQUIT)?;
                std::thread::sleep(DUMPS);
                return Ok(std::fs::read_to_string(&self.errors)?);
            }
            "orbit why" => {
                let mut command = Command::new(orbit_command()?);
                command.args(["why", &pid]);
                command
            }
            _ => Command::new(tool),
        };
        match tool {
            "py-spy" => command.args(["dump", "--pid", &pid]),
            "gdb" => command.args(["-nx", "-batch", "-p", &pid, "-ex", "info threads", "-ex", "thread apply all bt"]),
            "jstack" => command.arg(&pid),
            _ => &mut command,
        };
        let output = command.stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether all words of one of these lists are there.
    fn names(&self, lists: &[&[&str]], said: &str) -> bool {
        let with_ids = |word: &str| {
            let put = |word: String, (name, id): (&String, &i32)| word.replace(&format!("{{{name}}}"), &id.to_string());
            self.ids.iter().fold(word.to_owned(), put)
        };
        lists.iter().any(|words| words.iter().all(|word| said.contains(&with_ids(word))))
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Of a child not waited for yet, so its group's number is no other's.
        let _ = signals::send_to_group(self.child.id() as i32, libc::SIGKILL);
        let _ = self.child.wait_for_exit();
    }
}

/// Builds a target and answers how to start it.
fn command(target: &Target, scratch: &Scratch) -> Result<Command, Failure> {
    let run = |tool: &str, args: &[&std::ffi::OsStr]| {
        let output = Command::new(tool).args(args).output()?;
        let errors = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(Failure::text(format!("{tool}: {}", errors()))) }
    };
    let mut command = match target.program {
        Program::C => Command::new(scratch.compile("hangs", include_str!("targets/hangs.c"), &[])?),
        Program::Python => {
            let mut python = Command::new("python3");
            python.arg(scratch.file("hangs.py", include_str!("targets/hangs.py"))?);
            python
        }
        Program::Java => {
            let source = scratch.file("Hangs.java", include_str!("targets/Hangs.java"))?;
            let classes = scratch.path("");
            run("javac", &["-d".as_ref(), classes.as_ref(), source.as_ref()])?;
            let mut java = Command::new("java");
            java.arg("-cp").arg(classes).arg("Hangs");
            java
        }
        Program::Go => {
            let source = scratch.file("hangs.go", include_str!("targets/hangs.go"))?;
            let program = scratch.path("hangs-go");
            run("go", &["build".as_ref(), "-o".as_ref(), program.as_ref(), source.as_ref()])?;
            Command::new(program)
        }
    };
    command.arg(target.way).arg(scratch.path("turns"));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_asks_for_facts_that_are_known() {
        let names: std::collections::BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!((names.len(), TARGETS.len()), (12, 12));
        for target in &TARGETS {
            let are_known = target.facts.iter().all(|(fact, words)| FACTS.contains(fact) && !words.is_empty());
            assert!(are_known, "{}", target.name);
            assert!(target.facts.iter().any(|(fact, _)| *fact == "frame"), "{}", target.name);
        }
    }

    #[test]
    fn a_fact_is_named_by_all_words_of_one_list() {
        let child = Command::new("true").process_group(0).spawn().expect("true");
        let hung = Hung { child, pid: 7, ids: BTreeMap::from([("pays".to_owned(), 12)]), errors: PathBuf::new() };
        let lists: &[&[&str]] = &[&["held by {pays}", "lock"], &["owner = {pays}"]];
        assert!(hung.names(lists, "a lock held by 12"));
        assert!(hung.names(lists, "owner = 12"));
        assert!(!hung.names(lists, "a thing held by 12") && !hung.names(lists, "a lock held by 13"));
        assert!(!hung.names(&[], "anything"));
    }
}
