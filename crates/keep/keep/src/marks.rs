//! Whether going back without a log is exact, or costs only the connections that moved, as a pure
//! judge.
//!
//! A checkpoint has *marks*: what the program had done by then that others can see. At a crash they
//! are compared with what it has done by now. Anything that is not shown to be unmoved has moved.
//!
//! The witness for system calls is a counter in the kernel ([`orbit_linux::calls_made`]): an
//! allow-list says which numbers nobody outside can see. For what was read it is the kind of each
//! descriptor, and of a connection its own counters.

use crate::arguments::Exactness;
use crate::files::FileState;
use crate::open_state::Detail;
use graft::Process;
use orbit_linux::calls_made::{CallsMade, Class, Descriptor, Made, NUMBERS};
use orbit_linux::maps::Entry;
use orbit_linux::socket_info;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

/// Sockets whose counters are read at most, 3 us each.
const MOST_SOCKETS: usize = 512;

/// What a descriptor is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nobody else has it, and a rollback puts it back: an own pipe, a timer.
    Own,
    /// Reading it takes nothing from others: a file.
    Still,
    /// A connection by TCP, or a socket that listens: bytes that the program has read, and
    /// written.
    Tcp(u64, u64),
    /// A file open for appending.
    Appended,
    /// A stderr that is none: what the program writes there is for people.
    Messages,
    /// All else. What was read from it is gone.
    Other,
}

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub fd: i32,
    /// Device and inode.
    pub id: (u64, u64),
    pub kind: Kind,
}

/// What the program had done at a moment when it stood still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub made: Made,
    pub objects: Vec<Mark>,
    pub children: BTreeSet<i32>,
}

impl Marks {
    /// Of a program that stands still.
    pub fn of(made: Made, process: &Process, files: &[FileState], children: &BTreeSet<i32>) -> Marks {
        let mut sockets = 0;
        let objects = files.iter().map(|file| {
            let kind = match file.name.starts_with("socket:") && sockets < MOST_SOCKETS {
                true => {
                    sockets += 1;
                    moved(process, file.fd).map_or(Kind::Other, |(read, written)| Kind::Tcp(read, written))
                }
                false => kind(file, files, children.is_empty()),
            };
            Mark { fd: file.fd, id: file.id(), kind }
        });
        Marks { made, objects: objects.collect(), children: children.clone() }
    }

    /// What the witness has to know of the descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = (i32, Descriptor)> {
        self.objects.iter().filter_map(|mark| match mark.kind {
            Kind::Own => Some((mark.fd, Descriptor::Own)),
            Kind::Other => Some((mark.fd, Descriptor::Taken)),
            Kind::Tcp(..) => Some((mark.fd, Descriptor::Connection)),
            Kind::Appended | Kind::Messages => Some((mark.fd, Descriptor::Appended)),
            Kind::Still => None,
        })
    }
}

fn kind(file: &FileState, files: &[FileState], is_alone: bool) -> Kind {
    match &file.detail {
        Detail::Timer { .. } | Detail::Epoll { .. } => Kind::Own,
        // A child may have the other end.
        Detail::Event { .. } if is_alone => Kind::Own,
        Detail::Pipe { .. } if is_alone => {
            let has_both = |other: &FileState| {
                other.id() == file.id() && matches!(other.detail, Detail::Pipe { content: Some(_) })
            };
            if files.iter().any(has_both) { Kind::Own } else { Kind::Other }
        }
        Detail::Regular { length: Some(_), .. } => Kind::Appended,
        Detail::Regular { .. } | Detail::Folder { .. } => Kind::Still,
        _ if file.is_memory_device() => Kind::Still,
        _ if file.fd == libc::STDERR_FILENO => Kind::Messages,
        _ => Kind::Other,
    }
}

/// Bytes that a program has read from a connection, and written to it; nothing of a socket that is
/// none of TCP.
fn moved(process: &Process, fd: i32) -> Option<(u64, u64)> {
    // TCP_FIN_WAIT2 to TCP_LAST_ACK without the open ones, and TCP_CLOSING: the end of the peer's
    // data counts as a byte that came in, and not as one that waits.
    const ENDED: [u8; 5] = [6, 7, 8, 9, 11];
    let ours = process.duplicate(fd).ok()?;
    let mut before = socket_info::tcp(ours.as_fd())?;
    // The peer may still send: until two readings are alike.
    for _ in 0..64 {
        let now = socket_info::tcp(ours.as_fd())?;
        let seen = |tcp: &socket_info::Tcp| (tcp.bytes_in, tcp.unread, tcp.bytes_out, tcp.unsent, tcp.state);
        if seen(&now) == seen(&before) {
            let ended = u64::from(ENDED.contains(&now.state));
            let [unread, unsent] = [now.unread, now.unsent].map(|bytes| u64::try_from(bytes).unwrap_or(0));
            return Some((now.bytes_in.saturating_sub(ended + unread), now.bytes_out + unsent));
        }
        before = now;
    }
    None
}

/// Memory that the program shares with others and can write, if it has some.
pub(crate) fn shared_memory(mappings: &[Entry]) -> Option<&str> {
    let is_it =
        |e: &&Entry| e.shared && e.protection & libc::PROT_WRITE != 0 && !e.name.starts_with("/memfd:orbit-keep");
    let of = mappings.iter().find(is_it)?;
    Some(if of.name.is_empty() { "anonymous" } else { &of.name })
}

/// What going back costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Connections that are reset, by their descriptors now.
    pub reset: Vec<i32>,
    /// Connections that were closed since: there is a closed one at each of these numbers again.
    pub closed: Vec<i32>,
    /// Outputs to files open for appending and to stderr since the checkpoint.
    pub appended: u64,
    /// Handlers of signals that have run since, as if they had not.
    pub handled: u64,
}

/// What going back from `now` to `then` costs. An error: more than `allowed`, and why. Exact is
/// what costs nothing but connections from which was read, without a word to anybody. `shared`: see
/// [`shared_memory`].
pub(crate) fn judge(then: &Marks, now: &Marks, shared: Option<&str>, allowed: Exactness) -> Result<Cost, String> {
    let since = |count: fn(&Made) -> u64| count(&now.made).saturating_sub(count(&then.made));
    if then.made.seen == 0 {
        return Err("its system calls are not counted here".into());
    }
    let is_independent = allowed == Exactness::Independent;
    let (connections, appended, handled) =
        (since(|made| made.connections), since(|made| made.appended), since(|made| made.handled));
    let outside = since(|made| made.outside) + if is_independent { 0 } else { connections + appended };
    if outside > 0 {
        return Err(format!(
            "since the checkpoint it has made {outside} system calls that others can see, the last of number {}",
            now.made.last
        ));
    }
    if handled > 0 && !is_independent {
        return Err("since the checkpoint it has handled signals".into());
    }
    if let Some(name) = shared {
        return Err(format!("it has memory that it shares with others ({name}), and may have written there"));
    }
    if then.children != now.children {
        return Err("since the checkpoint it has made children, or some have ended".into());
    }
    let is = |was: &Mark| now.objects.iter().find(|mark| mark.fd == was.fd && mark.id == was.id);
    let was = |is: &Mark| then.objects.iter().find(|mark| mark.fd == is.fd && mark.id == is.id);
    let is_tcp = |mark: &&Mark| matches!(mark.kind, Kind::Tcp(..));
    // The end of a connection or a pipe is something that its peer has seen.
    let gone: Vec<&Mark> = then.objects.iter().filter(|mark| is(mark).is_none()).collect();
    let is_other = |mark: &Mark| matches!(mark.kind, Kind::Other | Kind::Messages);
    let is_missed = |mark: &&&Mark| is_other(mark) || (is_tcp(mark) && !is_independent);
    if let Some(missed) = gone.iter().find(is_missed) {
        return Err(format!("since the checkpoint it has closed descriptor {}", missed.fd));
    }
    let made: Vec<&Mark> = now.objects.iter().filter(|mark| was(mark).is_none()).collect();
    if let Some(other) = made.iter().find(|mark| is_other(mark)) {
        return Err(format!("since the checkpoint it has descriptor {}, whose peer may know of it", other.fd));
    }
    let accepted = made.iter().filter(|mark| is_tcp(mark)).count() as u64;
    if accepted != since(|made| made.accepts) && !is_independent {
        return Err("since the checkpoint it has accepted a connection, and closed it".into());
    }
    if since(|made| made.inputs) > 0 {
        return Err("since the checkpoint it has read what cannot be read again".into());
    }
    let is_lost = |mark: &&Mark| was(mark).is_some_and(|was| is_tcp(&was)) && !is_tcp(mark);
    if let Some(lost) = now.objects.iter().find(is_lost) {
        return Err(format!("what descriptor {} has moved cannot be read", lost.fd));
    }
    // One that was made since and is exact to forget is closed without a word.
    let has_moved = |mark: &&Mark| is_tcp(mark) && was(mark).map_or(is_independent, |was| was.kind != mark.kind);
    Ok(Cost {
        reset: now.objects.iter().filter(has_moved).map(|mark| mark.fd).collect(),
        closed: gone.into_iter().filter(is_tcp).map(|mark| mark.fd).collect(),
        appended,
        handled,
    })
}

/// The program was put back to the first of these: by now `made` is what it had done there, calls
/// of the rollback included. Those before it are as far from it as they were.
pub(crate) fn put_back<'m>(checkpoints: impl Iterator<Item = &'m mut Marks>, made: Made) {
    let mut first = None;
    for marks in checkpoints {
        let was = marks.made;
        let from = *first.get_or_insert(was);
        let shifted =
            |count: fn(&Made) -> u64| count(&made) - count(&from).saturating_sub(count(&was)).min(count(&made));
        marks.made = Made {
            seen: shifted(|made| made.seen),
            outside: shifted(|made| made.outside),
            connections: shifted(|made| made.connections),
            appended: shifted(|made| made.appended),
            last: was.last,
            inputs: shifted(|made| made.inputs),
            accepts: shifted(|made| made.accepts),
            handled: shifted(|made| made.handled),
        };
    }
}

/// What nobody outside can see of the system calls, by their numbers: an allow-list.
pub(crate) fn classes() -> Box<[Class; NUMBERS]> {
    const INSIDE: [i64; 108] = [
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_mincore,
        libc::SYS_futex,
        libc::SYS_membarrier,
        libc::SYS_rseq,
        libc::SYS_set_robust_list,
        libc::SYS_get_robust_list,
        libc::SYS_set_tid_address,
        libc::SYS_arch_prctl,
        libc::SYS_prctl,
        libc::SYS_clock_gettime,
        libc::SYS_clock_getres,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_gettimeofday,
        libc::SYS_time,
        libc::SYS_times,
        libc::SYS_getrusage,
        libc::SYS_restart_syscall,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_getparam,
        libc::SYS_sched_getscheduler,
        libc::SYS_getcpu,
        libc::SYS_getpriority,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getppid,
        libc::SYS_getpgrp,
        libc::SYS_getpgid,
        libc::SYS_getsid,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getegid,
        libc::SYS_getresuid,
        libc::SYS_getresgid,
        libc::SYS_getgroups,
        libc::SYS_capget,
        libc::SYS_uname,
        libc::SYS_sysinfo,
        libc::SYS_getrlimit,
        libc::SYS_getrandom,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigpending,
        libc::SYS_rt_sigsuspend,
        libc::SYS_sigaltstack,
        libc::SYS_pause,
        libc::SYS_tgkill,
        libc::SYS_tkill,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_create,
        libc::SYS_epoll_create1,
        libc::SYS_eventfd,
        libc::SYS_eventfd2,
        libc::SYS_timerfd_create,
        libc::SYS_timerfd_settime,
        libc::SYS_timerfd_gettime,
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_timer_gettime,
        libc::SYS_timer_delete,
        libc::SYS_timer_getoverrun,
        libc::SYS_setitimer,
        libc::SYS_getitimer,
        libc::SYS_alarm,
        libc::SYS_pipe,
        libc::SYS_pipe2,
        libc::SYS_stat,
        libc::SYS_fstat,
        libc::SYS_lstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_access,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_readlink,
        libc::SYS_readlinkat,
        libc::SYS_getcwd,
        libc::SYS_lseek,
        libc::SYS_getdents,
        libc::SYS_getdents64,
        libc::SYS_fadvise64,
        libc::SYS_readahead,
        libc::SYS_statfs,
        libc::SYS_fstatfs,
        libc::SYS_close,
        libc::SYS_chdir,
        libc::SYS_fchdir,
        libc::SYS_umask,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_getsockopt,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
    ];
    let mut classes = Box::new([Class::Outside; NUMBERS]);
    let mut set = |numbers: &[i64], class: Class| {
        for number in numbers {
            classes[*number as usize] = class;
        }
    };
    set(&INSIDE, Class::Inside);
    set(&[libc::SYS_openat], Class::OpenAt);
    set(&[libc::SYS_open], Class::Open);
    set(&[libc::SYS_fcntl], Class::Fcntl);
    set(&[libc::SYS_ioctl], Class::Ioctl);
    set(
        &[
            libc::SYS_write,
            libc::SYS_writev,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_sendmmsg,
            libc::SYS_sendfile,
            libc::SYS_shutdown,
            libc::SYS_connect,
            libc::SYS_setsockopt,
        ],
        Class::Write,
    );
    set(&[libc::SYS_socket], Class::Socket);
    set(
        &[
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_pread64,
            libc::SYS_preadv,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
        ],
        Class::Read,
    );
    set(&[libc::SYS_clone], Class::Clone);
    set(&[libc::SYS_rt_sigreturn], Class::Handled);
    set(&[libc::SYS_accept, libc::SYS_accept4], Class::Accept);
    classes
}

/// The numbers of calls that the program's side makes in a replay though they are in no log, a bit
/// each: they change nothing outside, nor what a log does not bring back.
pub(crate) fn made_in_a_replay() -> [u64; 8] {
    const NOT: [i64; 31] = [
        // These it judges itself.
        libc::SYS_close,
        libc::SYS_lseek,
        libc::SYS_getdents,
        libc::SYS_getdents64,
        libc::SYS_tkill,
        // With a log descriptors, sets of epoll, timers, folder and mask of new files stay as they
        // are: made again, such a call does more than it did.
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_epoll_create,
        libc::SYS_epoll_create1,
        libc::SYS_eventfd,
        libc::SYS_eventfd2,
        libc::SYS_pipe,
        libc::SYS_pipe2,
        libc::SYS_timerfd_create,
        libc::SYS_timerfd_settime,
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_timer_delete,
        libc::SYS_timer_getoverrun,
        libc::SYS_setitimer,
        libc::SYS_alarm,
        libc::SYS_chdir,
        libc::SYS_fchdir,
        libc::SYS_umask,
        // These answer otherwise each time.
        libc::SYS_statfs,
        libc::SYS_fstatfs,
        libc::SYS_times,
        libc::SYS_getrusage,
        libc::SYS_timerfd_gettime,
    ];
    let mut bits = [0; 8];
    for (number, _) in classes().iter().enumerate().filter(|(_, class)| **class == Class::Inside) {
        if !NOT.contains(&(number as i64)) {
            bits[number / 64] |= 1 << (number % 64);
        }
    }
    bits
}

/// The witness of a program's calls, or why there is none.
pub(crate) type Witness = Result<CallsMade, String>;

#[cfg(test)]
mod tests {
    use super::*;

    /// One thing that a program may do between checkpoint and crash.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Did {
        Nothing,
        Computed,
        ReadConnection,
        ReadOther,
        Wrote,
        Accepted,
        AcceptedAndClosed,
        ClosedConnection,
        ClosedOther,
        WroteOwn,
        Answered,
        Connected,
        ConnectedAndClosed,
        Appended,
        Handled,
        Forked,
    }
    use Did::*;
    const ALL: [Did; 16] = [
        Nothing,
        Computed,
        ReadConnection,
        ReadOther,
        Wrote,
        Accepted,
        AcceptedAndClosed,
        ClosedConnection,
        ClosedOther,
        WroteOwn,
        Answered,
        Connected,
        ConnectedAndClosed,
        Appended,
        Handled,
        Forked,
    ];

    const CONNECTION: i32 = 5;
    const OTHER: i32 = 6;
    const OWN: i32 = 7;

    fn begin(has_other: bool) -> Marks {
        let mark = |fd: i32, kind| Mark { fd, id: (1, fd as u64), kind };
        let mut objects = vec![mark(3, Kind::Still), mark(4, Kind::Tcp(0, 0)), mark(CONNECTION, Kind::Tcp(10, 10))];
        objects.extend(has_other.then(|| mark(OTHER, Kind::Other)));
        objects.push(mark(OWN, Kind::Own));
        Marks { made: Made { seen: 1, ..Made::default() }, objects, children: BTreeSet::new() }
    }

    /// What the kernel counts and shows after it; nothing where the program does not have such a
    /// descriptor any more.
    fn step(marks: &mut Marks, did: Did, nth: u64) -> Option<()> {
        let at = |marks: &Marks, fd| marks.objects.iter().position(|mark| mark.fd == fd);
        marks.made.seen += 1;
        match did {
            Nothing | Computed | WroteOwn => {}
            ReadConnection => {
                let connection = at(marks, CONNECTION)?;
                let Kind::Tcp(_, written) = marks.objects[connection].kind else { return None };
                marks.objects[connection].kind = Kind::Tcp(20 + nth, written);
            }
            Answered => {
                let connection = at(marks, CONNECTION)?;
                let Kind::Tcp(read, _) = marks.objects[connection].kind else { return None };
                marks.objects[connection].kind = Kind::Tcp(read, 20 + nth);
                marks.made.connections += 1;
            }
            Connected => {
                marks.objects.push(Mark { fd: 20 + nth as i32, id: (1, 100 + nth), kind: Kind::Tcp(0, 0) });
                marks.made.connections += 2;
            }
            ConnectedAndClosed => marks.made.connections += 2,
            Did::Appended => marks.made.appended += 1,
            ReadOther => {
                at(marks, OTHER)?;
                marks.made.inputs += 1;
            }
            Wrote => marks.made.outside += 1,
            Accepted => {
                let fd = 20 + nth as i32;
                marks.objects.push(Mark { fd, id: (1, 100 + nth), kind: Kind::Tcp(0, 0) });
                marks.made.accepts += 1;
            }
            AcceptedAndClosed => marks.made.accepts += 1,
            ClosedConnection => drop(marks.objects.remove(at(marks, CONNECTION)?)),
            ClosedOther => drop(marks.objects.remove(at(marks, OTHER)?)),
            Handled => marks.made.handled += 1,
            Forked => drop(marks.children.insert(100 + nth as i32)),
        }
        Some(())
    }

    /// What peers have seen, in order: the truth. Exact is what no peer can tell from a slow
    /// server, or has its connection reset; independent costs connections that moved.
    fn reference(history: &[Did], allowed: Exactness) -> Option<Cost> {
        let for_nobody = [Nothing, Computed, WroteOwn, ReadConnection, Accepted];
        let for_peers = [AcceptedAndClosed, ClosedConnection, Answered, Connected, ConnectedAndClosed];
        let is_independent = allowed == Exactness::Independent;
        let mut cost = Cost::default();
        for (did, nth) in history.iter().zip(0..) {
            let has_moved = [ReadConnection, Answered].contains(did) && !cost.reset.contains(&CONNECTION);
            match did {
                _ if for_nobody.contains(did) => {}
                _ if !is_independent => return None,
                Did::Appended => cost.appended += 1,
                Handled => cost.handled += 1,
                _ if for_peers.contains(did) => {}
                _ => return None,
            }
            cost.reset.extend(has_moved.then_some(CONNECTION));
            let is_new = [Accepted, Connected].contains(did) && is_independent;
            cost.reset.extend(is_new.then_some(20 + nth));
        }
        if history.contains(&ClosedConnection) {
            cost.closed.push(CONNECTION);
            cost.reset.retain(|fd| *fd != CONNECTION);
        }
        cost.reset.sort_unstable();
        Some(cost)
    }

    #[test]
    fn all_histories_of_three_steps_are_judged_as_peers_would() {
        let mut judged = 0;
        for has_other in [false, true] {
            for history in ALL.iter().flat_map(|a| ALL.iter().flat_map(move |b| ALL.iter().map(move |c| [*a, *b, *c])))
            {
                let then = begin(has_other);
                let mut now = then.clone();
                let is_possible = history.iter().zip(0..).all(|(did, nth)| step(&mut now, *did, nth).is_some());
                if !is_possible {
                    continue;
                }
                for allowed in [Exactness::Exact, Exactness::Independent] {
                    judged += 1;
                    let truth = reference(&history, allowed);
                    match judge(&then, &now, None, allowed) {
                        Ok(mut cost) => {
                            cost.reset.sort_unstable();
                            assert_eq!(Some(cost), truth, "{history:?}, {allowed:?}");
                        }
                        Err(why) => assert_eq!(truth, None, "{history:?} is {allowed:?}, not: {why}"),
                    }
                }
            }
        }
        assert!(judged > 10_000, "{judged}");
    }

    #[test]
    fn a_rollback_leaves_older_checkpoints_as_far_away() {
        let at = |outside| Marks { made: Made { seen: 9, outside, ..Made::default() }, ..begin(false) };
        let (mut newest, mut older) = (at(5), at(3));
        put_back([&mut newest, &mut older].into_iter(), Made { seen: 20, outside: 9, ..Made::default() });
        assert_eq!((newest.made.outside, older.made.outside), (9, 7), "two calls were made between them");
        let exact = |then: &Marks, now: &Marks| judge(then, now, None, Exactness::Exact);
        assert!(exact(&newest, &at(9)).is_ok() && exact(&older, &at(9)).is_err());
    }

    #[test]
    fn what_is_not_counted_has_moved() {
        let mut then = begin(false);
        then.made.seen = 0;
        for allowed in [Exactness::Exact, Exactness::Independent] {
            assert!(judge(&then, &then, None, allowed).is_err());
            assert!(judge(&begin(false), &begin(false), Some("/dev/shm/x"), allowed).is_err());
            assert_eq!(judge(&begin(true), &begin(true), None, allowed), Ok(Cost::default()));
        }
    }

    #[test]
    fn a_call_that_is_not_known_can_be_seen() {
        let classes = classes();
        for number in [libc::SYS_splice, libc::SYS_unlink, libc::SYS_kill, libc::SYS_io_uring_enter, 511] {
            assert_eq!(classes[number as usize], Class::Outside);
        }
    }
}
