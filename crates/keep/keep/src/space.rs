//! What to do to a program's mappings so that they are those of a checkpoint, as a pure function.
//!
//! Shared mappings that are still there stay as they are; their content is not rolled back.

use orbit_linux::maps::Entry;

/// One change, in the order in which they are to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The end of the heap.
    Break(u64),
    Unmap {
        start: u64,
        end: u64,
    },
    /// Private memory: anonymous, or of the file that `like` names.
    Map {
        start: u64,
        end: u64,
        like: Entry,
    },
    Protect {
        start: u64,
        end: u64,
        protection: i32,
    },
}

/// Whether a mapping's content is kept: private memory. `[vdso]` and its like are the kernel's.
/// Memory that the program cannot reach is mostly a reservation that holds nothing: see
/// [`is_reservation`].
pub(crate) fn is_kept(entry: &Entry) -> bool {
    !entry.shared && !is_kernels(entry)
}

/// Whether the program cannot reach the mapping as it is: its content is kept if it has any.
pub(crate) fn is_reservation(entry: &Entry) -> bool {
    entry.protection == 0
}

/// Writable memory that the program shares with others by a file, if it has some: what it writes
/// there is in no log, and a replay would write it twice. That of processes which it has forked is
/// left out: see docs/limits.md.
pub(crate) fn unrecordable(mappings: &[Entry]) -> Option<String> {
    let is_it = |e: &&Entry| {
        e.shared
            && e.protection & libc::PROT_WRITE != 0
            && !e.name.is_empty()
            && !e.name.starts_with("/dev/zero")
            && !e.name.starts_with("/memfd:orbit-keep")
    };
    let of = mappings.iter().find(is_it)?;
    Some(match of.name.starts_with("anon_inode:[io_uring]") {
        true => "an io_uring".into(),
        false => format!("writable memory that it shares by {}", of.name),
    })
}

fn is_kernels(entry: &Entry) -> bool {
    entry.name.starts_with("[v") || entry.name == "[uprobes]"
}

/// Whether two mappings hold the same thing at an address that both have.
fn is_same(a: &Entry, b: &Entry) -> bool {
    a.shared == b.shared
        && a.inode == b.inode
        && (a.inode == 0 || a.offset.wrapping_sub(a.start) == b.offset.wrapping_sub(b.start))
}

fn heap_end(entries: &[Entry]) -> Option<u64> {
    entries.iter().filter(|e| e.name == "[heap]").map(|e| e.end).max()
}

/// The changes from `now` to `then`; both sorted by address. Second: mappings of `then` that cannot
/// be made again.
pub(crate) fn changes(now: &[Entry], then: &[Entry]) -> (Vec<Change>, Vec<Entry>) {
    let (mut unmap, mut other, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = Vec::new();
    if let Some(end) = heap_end(then)
        && heap_end(now) != Some(end)
    {
        first.push(Change::Break(end));
    }
    let mut cuts: Vec<u64> = now.iter().chain(then).flat_map(|e| [e.start, e.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let (mut i, mut j) = (0, 0);
    for (start, end) in cuts.iter().copied().zip(cuts.iter().copied().skip(1)) {
        while now.get(i).is_some_and(|e| e.end <= start) {
            i += 1;
        }
        while then.get(j).is_some_and(|e| e.end <= start) {
            j += 1;
        }
        let is = now.get(i).filter(|e| e.start <= start);
        let was = then.get(j).filter(|e| e.start <= start);
        let by_break = |e: &Entry| e.name == "[heap]";
        match (is, was) {
            (None, None) => {}
            // A stack that has grown stays so: the kernel would have to grow it again.
            (Some(is), None) if is_kernels(is) || by_break(is) || is.name == "[stack]" => {}
            (Some(_), None) => unmap.push(Change::Unmap { start, end }),
            (None, Some(was)) if by_break(was) => {}
            (None, Some(was)) if was.shared || is_kernels(was) => lost.push(was.clone()),
            (None, Some(was)) => other.push(Change::Map { start, end, like: was.clone() }),
            (Some(is), Some(was)) if !is_same(is, was) => {
                if was.shared {
                    lost.push(was.clone());
                } else if !is_kernels(is) {
                    unmap.push(Change::Unmap { start, end });
                    other.push(Change::Map { start, end, like: was.clone() });
                }
            }
            (Some(is), Some(was)) if is.protection != was.protection => {
                other.push(Change::Protect { start, end, protection: was.protection });
            }
            (Some(_), Some(_)) => {}
        }
    }
    lost.dedup();
    first.extend(joined(unmap));
    first.extend(joined(other));
    (first, lost)
}

/// Neighbours made one.
fn joined(changes: Vec<Change>) -> Vec<Change> {
    let mut out: Vec<Change> = Vec::new();
    for change in changes {
        match (out.last_mut(), &change) {
            (Some(Change::Unmap { end, .. }), Change::Unmap { start, end: to }) if end == start => *end = *to,
            (Some(Change::Protect { end, protection: p, .. }), Change::Protect { start, end: to, protection: q })
                if end == start && p == q =>
            {
                *end = *to;
            }
            (Some(Change::Map { end, like: a, .. }), Change::Map { start, end: to, like: b })
                if end == start && a == b =>
            {
                *end = *to
            }
            _ => out.push(change),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn entry(start: u64, end: u64, protection: i32, inode: u64, name: &str) -> Entry {
        Entry { start, end, protection, shared: false, offset: 0, inode, name: name.into() }
    }

    #[test]
    fn equal_spaces_need_nothing() {
        let space = [entry(0x1000, 0x2000, RW, 0, ""), entry(0x3000, 0x4000, 1, 7, "/lib")];
        assert_eq!(changes(&space, &space), (Vec::new(), Vec::new()));
    }

    #[test]
    fn what_was_made_goes_and_what_went_is_made() {
        let then = [entry(0x1000, 0x3000, RW, 0, ""), entry(0x8000, 0x9000, RW, 0, "")];
        let now = [entry(0x2000, 0x5000, RW, 0, "")];
        let (made, lost) = changes(&now, &then);
        assert_eq!(
            made,
            [
                Change::Unmap { start: 0x3000, end: 0x5000 },
                Change::Map { start: 0x1000, end: 0x2000, like: then[0].clone() },
                Change::Map { start: 0x8000, end: 0x9000, like: then[1].clone() },
            ]
        );
        assert!(lost.is_empty());
    }

    #[test]
    fn protection_is_put_back_over_split_mappings() {
        let then = [entry(0x1000, 0x4000, RW, 0, "")];
        let now = [entry(0x1000, 0x2000, RW, 0, ""), entry(0x2000, 0x3000, 1, 0, ""), entry(0x3000, 0x4000, 1, 0, "")];
        assert_eq!(changes(&now, &then).0, [Change::Protect { start: 0x2000, end: 0x4000, protection: RW }]);
    }

    #[test]
    fn another_file_at_the_same_place_is_replaced() {
        let (then, now) = ([entry(0x1000, 0x2000, 1, 7, "/a")], [entry(0x1000, 0x2000, 1, 8, "/b")]);
        let expected = [
            Change::Unmap { start: 0x1000, end: 0x2000 },
            Change::Map { start: 0x1000, end: 0x2000, like: then[0].clone() },
        ];
        assert_eq!(changes(&now, &then).0, expected);
    }

    #[test]
    fn the_heap_goes_by_its_break_and_the_stack_may_have_grown() {
        let then = [entry(0x1000, 0x3000, RW, 0, "[heap]"), entry(0x9000, 0xa000, RW, 0, "[stack]")];
        let now = [entry(0x1000, 0x5000, RW, 0, "[heap]"), entry(0x8000, 0xa000, RW, 0, "[stack]")];
        assert_eq!(changes(&now, &then).0, [Change::Break(0x3000)]);
    }

    #[test]
    fn shared_memory_that_is_gone_is_lost() {
        let mut shared = entry(0x1000, 0x2000, RW, 9, "/dev/shm/x");
        shared.shared = true;
        assert_eq!(changes(&[], std::slice::from_ref(&shared)), (Vec::new(), vec![shared.clone()]));
        assert_eq!(changes(std::slice::from_ref(&shared), std::slice::from_ref(&shared)), (Vec::new(), Vec::new()));
    }
}
