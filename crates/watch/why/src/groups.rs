//! Threads that do the same, together.

use crate::sample::Thread;

/// Threads with equal stacks, as places in the list of threads. Those in rings come first, then
/// those that seem to wait for themselves, then those that use CPU, then large groups.
pub(crate) fn groups(threads: &[Thread]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (place, thread) in threads.iter().enumerate() {
        match groups.iter_mut().find(|group| same(&threads[group[0]], thread)) {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    let rank = |group: &Vec<usize>| {
        let any = |is: fn(&Thread) -> bool| group.iter().any(|place| is(&threads[*place]));
        (
            !any(|thread| thread.in_ring),
            !any(|thread| thread.waits_for_itself),
            !any(Thread::is_busy),
            usize::MAX - group.len(),
        )
    };
    groups.sort_by_key(rank);
    groups
}

/// Whether two threads are shown as one: neither in a ring, both busy or neither, at the same
/// places in the program.
fn same(a: &Thread, b: &Thread) -> bool {
    // What only a runtime knows has no address.
    let place = |thread: &Thread| -> Vec<_> {
        thread.frames.iter().map(|frame| (frame.address, frame.function.clone(), frame.line)).collect()
    };
    let is_known = !a.frames.is_empty() || !a.python.is_empty();
    is_known
        && !a.in_ring
        && !b.in_ring
        && a.is_busy() == b.is_busy()
        && std::mem::discriminant(&a.wait) == std::mem::discriminant(&b.wait)
        && a.python == b.python
        && place(a) == place(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_inspect::Sure;
    use orbit_inspect::stacks::Frame;
    use orbit_inspect::waits::Wait;

    fn thread(tid: i32, address: u64, cpu: f64, in_ring: bool) -> Thread {
        let frame = Frame {
            address,
            module: String::new(),
            function: None,
            file: None,
            line: None,
            offset: 0,
            inlined: false,
            sure: Sure::Certain,
            cfa: None,
        };
        Thread {
            tid,
            name: String::new(),
            wait: Wait::Sleep,
            cpu,
            runnable: cpu,
            holder: None,
            peers: Vec::new(),
            frames: vec![frame],
            python: Vec::new(),
            in_ring,
            waits_for_itself: false,
        }
    }

    #[test]
    fn equal_stacks_are_one_group_and_rings_come_first() {
        let threads = [
            thread(1, 10, 0.0, false),
            thread(2, 20, 0.0, false),
            thread(3, 10, 0.0, false),
            thread(4, 10, 0.9, false),
            thread(5, 10, 0.0, true),
        ];
        assert_eq!(groups(&threads), [vec![4], vec![3], vec![0, 2], vec![1]]);
    }

    #[test]
    fn one_that_waits_for_itself_comes_before_all_that_wait_for_it() {
        let mut threads = [thread(1, 0x10, 0.0, false), thread(2, 0x10, 0.0, false), thread(3, 0x20, 0.0, false)];
        threads[2].waits_for_itself = true;
        assert_eq!(groups(&threads), [vec![2], vec![0, 1]]);
    }
}
