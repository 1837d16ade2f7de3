//! How a run with a fault ended, compared with the run without. Pure functions.

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How a run ended, compared with the one without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Killed by a signal.
    Crashed,
    /// It did not end in ten times the time of the first run, and at least 5 s.
    Hung,
    /// It reports success and its output is another, or the check finds its data wrong.
    LostData,
    /// It left files or processes that the first run did not leave; or it succeeded, and had more
    /// descriptors, memory or children at its exit.
    Leaked,
    /// It reports a failure.
    Failed,
    /// It ended before anything of it ran: the loader, or libc for it, met the fault and gave up.
    Start,
    /// As without the fault.
    Unaffected,
    /// The call was not made.
    NotMet,
}

/// Memory at exit that the first run did not have, in bytes, from which it counts as leaked: an
/// allocator keeps less.
pub(super) const LEAK_BYTES: u64 = 256 << 10;

/// What glibc's malloc maps at least where brk fails, and keeps: a program that got its memory so
/// has lost none.
pub(super) const WITHOUT_BRK: u64 = 1 << 20;

pub(super) const OUTPUT: &str = "output";
pub(super) const CHECK: &str = "output of the check";

/// What a process had when it called exit_group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// What each open descriptor names, without numbers of pipes and sockets.
    pub descriptors: Vec<String>,
    /// Bytes of private writable memory that is no file's.
    pub memory: u64,
    /// Children that were not waited for.
    pub children: Vec<String>,
}

/// What the processes of a run had when they exited.
#[derive(Clone, Debug, Default)]
pub(super) struct AllHeld {
    /// Of the program's first process; `None`: it did not call exit_group.
    pub first: Option<Held>,
    /// Of all processes together, and their number.
    pub all: Held,
    pub processes: usize,
}

/// A run, for comparison.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// `None`: it did not end in time.
    pub status: Option<i32>,
    pub output: Vec<u8>,
    /// How often the rule of the fault acted.
    pub acted: u64,
    /// Memory that the fault itself made the allocator take: no leak.
    pub allowance: u64,
    pub pid: Option<u32>,
    pub held: AllHeld,
    /// Files that it made and left, and whether each is new.
    pub files: BTreeMap<PathBuf, bool>,
    /// Processes that were alive after its end.
    pub left: Vec<String>,
    /// What another run without a fault wrote otherwise, and so says nothing: `OUTPUT`, `CHECK`.
    pub varying: Vec<&'static str>,
    /// Status and output of the check.
    pub check: Option<(i32, Vec<u8>)>,
}

/// What two runs without a fault wrote differently.
pub(super) fn varying(first: &Ended, second: &Ended) -> Vec<&'static str> {
    let differs = [(OUTPUT, first.output != second.output), (CHECK, first.check != second.check)];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| what).collect()
}

/// The verdict, and what was lost or leaked.
pub(super) fn judge(first: &Ended, ended: &Ended) -> (Verdict, Vec<String>) {
    let Some(status) = ended.status else { return (Verdict::Hung, Vec::new()) };
    if ended.acted == 0 {
        return (Verdict::NotMet, Vec::new());
    }
    let lost = lost(first, ended);
    let leaked = leaked(first, ended);
    let verdict = match status {
        129.. => Verdict::Crashed,
        _ if !lost.is_empty() => Verdict::LostData,
        _ if !leaked.is_empty() => Verdict::Leaked,
        0 => Verdict::Unaffected,
        _ => Verdict::Failed,
    };
    (verdict, [lost, leaked].concat())
}

fn lost(first: &Ended, ended: &Ended) -> Vec<String> {
    let mut found = Vec::new();
    let is_fixed = |what| !first.varying.contains(&what);
    if ended.status == Some(0) && ended.output != first.output && is_fixed(OUTPUT) {
        found.push("it reports success, and its output is another".to_owned());
    }
    if let (Some((status, text)), Some((_, expected))) = (&ended.check, &first.check) {
        let text = String::from_utf8_lossy(text);
        if *status != 0 {
            found.push(format!("the check fails with status {status}: {}", text.trim()));
        } else if ended.status == Some(0) && text.as_bytes() != expected && is_fixed(CHECK) {
            found.push(format!("it reports success, and the check writes {:?}", text.trim()));
        }
    }
    found
}

/// What outlives the program always counts. What the kernel frees at its exit counts where it
/// continued and succeeded: a program that gives up need not tidy.
fn leaked(first: &Ended, ended: &Ended) -> Vec<String> {
    let mut found = Vec::new();
    let is_other = |path: &PathBuf| !first.files.contains_key(path);
    let fresh: Vec<_> = ended.files.iter().filter(|(path, is_new)| **is_new && is_other(path)).collect();
    // Names that differ from run to run: as many as there were are none too many.
    let missing = first.files.keys().filter(|path| !ended.files.contains_key(*path)).count();
    if fresh.len() > missing {
        found.extend(fresh.iter().map(|(path, _)| format!("the file {} is left", path.display())));
    }
    if ended.left.len() > first.left.len() {
        found.extend(ended.left.iter().map(|process| format!("{process} still runs")));
    }
    if ended.status == Some(0) {
        let same = first.held.processes == ended.held.processes;
        let (was, is) = if same {
            (Some(&first.held.all), Some(&ended.held.all))
        } else {
            (first.held.first.as_ref(), ended.held.first.as_ref())
        };
        if let (Some(was), Some(is)) = (was, is) {
            found.extend(more(was, is, ended.allowance));
        }
    }
    found
}

fn more(was: &Held, is: &Held, allowance: u64) -> Vec<String> {
    let mut found = Vec::new();
    let (before, now) = (was.descriptors.len(), is.descriptors.len());
    if now > before {
        let names = excess(&was.descriptors, &is.descriptors).join(", ");
        found.push(format!("{now} descriptors are open at the exit, {before} without the fault: {names}"));
    }
    if is.memory >= was.memory + LEAK_BYTES + allowance {
        let kib = (is.memory - was.memory) >> 10;
        found.push(format!("{kib} KiB more memory at the exit than without the fault"));
    }
    if is.children.len() > was.children.len() {
        let names = excess(&was.children, &is.children).join(", ");
        found.push(format!("children are not waited for: {names}"));
    }
    found
}

/// What `is` has more often than `was`.
fn excess(was: &[String], is: &[String]) -> Vec<String> {
    let mut was = was.to_vec();
    let mut more = is.to_vec();
    more.retain(|name| match was.iter().position(|other| other == name) {
        Some(at) => {
            was.swap_remove(at);
            false
        }
        None => true,
    });
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(descriptors: &[&str], memory: u64, children: &[&str]) -> AllHeld {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let held = Held { descriptors: texts(descriptors), memory, children: texts(children) };
        AllHeld { first: Some(held.clone()), all: held, processes: 1 }
    }

    fn ended(status: i32, held: AllHeld, files: &[(&str, bool)]) -> Ended {
        let files = files.iter().map(|(path, is_new)| (PathBuf::from(path), *is_new)).collect();
        Ended { status: Some(status), acted: 1, held, files, ..Ended::default() }
    }

    #[test]
    fn more_of_anything_at_a_successful_exit_is_a_leak() {
        let first = ended(0, held(&["pipe", "/a"], 1 << 20, &[]), &[]);
        let trials = [
            (
                held(&["pipe", "/a", "pipe"], 1 << 20, &[]),
                "3 descriptors are open at the exit, 2 without the fault: pipe",
            ),
            (held(&["pipe"], (1 << 20) + LEAK_BYTES, &[]), "256 KiB more memory at the exit than without the fault"),
            (held(&["pipe"], 0, &["sleep"]), "children are not waited for: sleep"),
        ];
        for (held, finding) in trials {
            let (verdict, found) = judge(&first, &ended(0, held.clone(), &[]));
            assert_eq!((verdict, found), (Verdict::Leaked, vec![finding.to_owned()]));
            assert_eq!(judge(&first, &ended(1, held, &[])).0, Verdict::Failed, "it gave up, and the kernel tidies");
        }
    }

    #[test]
    fn memory_that_malloc_maps_where_brk_fails_is_no_leak() {
        let first = ended(0, held(&[], 1 << 20, &[]), &[]);
        let with = |memory| Ended { allowance: WITHOUT_BRK, ..ended(0, held(&[], memory, &[]), &[]) };
        assert_eq!(judge(&first, &with(2 << 20)).0, Verdict::Unaffected);
        assert_eq!(judge(&first, &with((2 << 20) + LEAK_BYTES)).0, Verdict::Leaked);
    }

    #[test]
    fn what_differs_without_a_fault_is_no_loss() {
        let wrote = |output: &[u8], check: &[u8]| Ended {
            output: output.to_vec(),
            check: Some((0, check.to_vec())),
            ..ended(0, AllHeld::default(), &[])
        };
        let mut first = wrote(b"took 3 ms", b"3 rows");
        first.varying = varying(&first, &wrote(b"took 4 ms", b"3 rows"));
        assert_eq!(first.varying, [OUTPUT]);
        assert_eq!(judge(&first, &wrote(b"took 5 ms", b"3 rows")).0, Verdict::Unaffected);
        assert_eq!(judge(&first, &wrote(b"took 5 ms", b"2 rows")).0, Verdict::LostData);
    }

    #[test]
    fn files_count_also_where_the_program_fails() {
        let first = ended(0, AllHeld::default(), &[("/out", true), ("/tmp/a1", true)]);
        let (verdict, found) =
            judge(&first, &ended(1, AllHeld::default(), &[("/out", false), ("/x", true), ("/y", true)]));
        assert_eq!((verdict, found.len()), (Verdict::Leaked, 2));
        // Another random name in place of /tmp/a1, and a file that was there before.
        let same = [("/out", false), ("/tmp/b2", true), ("/etc/old", false)];
        assert_eq!(judge(&first, &ended(0, AllHeld::default(), &same)).0, Verdict::Unaffected);
    }

    #[test]
    fn a_check_that_fails_is_lost_data_whatever_the_program_reports() {
        let with = |status, check| Ended { status: Some(status), acted: 1, check: Some(check), ..Ended::default() };
        let first = with(0, (0, b"3 rows".to_vec()));
        assert_eq!(judge(&first, &with(1, (1, b"corrupt".to_vec()))).0, Verdict::LostData);
        assert_eq!(judge(&first, &with(0, (0, b"2 rows".to_vec()))).0, Verdict::LostData);
        assert_eq!(judge(&first, &with(1, (0, b"2 rows".to_vec()))).0, Verdict::Failed, "it said so");
        assert_eq!(judge(&first, &with(0, (0, b"3 rows".to_vec()))).0, Verdict::Unaffected);
    }
}
