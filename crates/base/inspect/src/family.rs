//! Which processes may have by `fork` what one of them made.

use orbit_linux::stat::Stat;
use std::collections::BTreeMap;

/// A process as far as its family goes.
#[derive(Debug)]
struct Kin {
    parent: i32,
    session: i32,
}

/// Processes of one moment, with their parents and sessions.
#[derive(Debug)]
pub struct Family(BTreeMap<i32, Kin>);

impl Family {
    /// Of these; those that have ended meanwhile are left out.
    pub fn of(pids: impl IntoIterator<Item = i32>) -> Family {
        Family(pids.into_iter().filter_map(|p| Some((p, kin(p)?))).collect())
    }

    /// Whether memory or descriptors may have come from one to the other by `fork`: the same
    /// session, or one is the other's ancestor. Of the first process all are.
    pub fn related(&self, a: i32, b: i32) -> bool {
        let session = |p: i32| self.0.get(&p).map(|k| k.session).filter(|&s| s != 0);
        let above = |child: i32, parent: i32| {
            std::iter::successors(Some(child), |p| self.0.get(p).map(|k| k.parent))
                .take(self.0.len())
                .any(|p| p == parent)
        };
        (session(a).is_some() && session(a) == session(b)) || above(a, b) || (a != 1 && above(b, a))
    }
}

fn kin(pid: i32) -> Option<Kin> {
    let stat = Stat::of(pid).ok()?;
    Some(Kin { parent: stat.parent, session: stat.session })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatives_are_those_of_a_session_and_of_one_line() {
        let of = |&(p, parent, session): &(i32, i32, i32)| (p, Kin { parent, session });
        // 1 starts the kernel's 2 beside 10, whose child 11 makes a session with 12; 20 is a
        // service.
        let all = [(1, 0, 1), (2, 0, 0), (3, 2, 0), (10, 1, 10), (11, 10, 11), (12, 11, 11), (13, 12, 13), (20, 1, 20)];
        let family = Family(all.iter().map(of).collect());
        for other in [10, 11, 13] {
            assert!(family.related(other, 12), "{other}");
        }
        for other in [1, 2, 3, 20] {
            assert!(!family.related(other, 12), "{other}");
        }
    }
}
