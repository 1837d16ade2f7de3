//! What is to be held back, for whom: [`Rule`], and which verdict holds where several want
//! something.

use crate::calls;
use orbit_linux::{pidfd, ptrace, socket};
use orbit_rmk::{CallVerdict, Verdict};
use std::{
    collections::HashMap,
    os::{fd::AsFd, unix::fs::FileTypeExt},
};

/// Whose rule it is: what a pin holds back for one of its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Of {
    pub(crate) pin: &'static str,
    pub(crate) user: u64,
}

pub(crate) enum What {
    Signals {
        mask: u64,
        verdict: Verdict,
    },
    /// Of this class (0: any), with these numbers (none: any).
    Calls {
        class: u32,
        numbers: Vec<u32>,
        verdict: CallVerdict,
    },
}

pub(super) struct Rule {
    pub(super) of: Of,
    pub(super) what: What,
}

/// One whom something concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Concerned {
    pub(super) of: Of,
    /// It is the holder.
    pub(super) holds: bool,
}

/// Whom a signal concerns, and the strictest verdict: hold, drop, replace, pass.
pub(super) fn on_signal(rules: &[Rule], signal: i32) -> Option<(Verdict, Vec<Concerned>)> {
    let strictness = |verdict: &Verdict| match verdict {
        Verdict::Pass => 0,
        Verdict::Replace { .. } => 1,
        Verdict::Drop => 2,
        Verdict::Hold => 3,
    };
    let concerned = rules.iter().filter_map(|rule| match &rule.what {
        What::Signals { mask, verdict } if mask >> (signal - 1) & 1 == 1 => {
            Some((verdict, Concerned { of: rule.of, holds: *verdict == Verdict::Hold }))
        }
        _ => None,
    });
    let (verdicts, users): (Vec<&Verdict>, Vec<Concerned>) = concerned.unzip();
    Some((verdicts.into_iter().max_by_key(|verdict| strictness(verdict))?.clone(), users))
}

/// The same for a call: hold, reject, pass.
pub(super) fn on_call(
    rules: &[Rule],
    classes: &HashMap<u32, u32>,
    pid: u32,
    call: &ptrace::Call,
) -> Option<(CallVerdict, Vec<Concerned>)> {
    let number = u32::try_from(call.number).ok().filter(|_| native(call))?;
    let strictness = |verdict: &CallVerdict| match verdict {
        CallVerdict::Pass => 0,
        CallVerdict::Refuse { .. } => 1,
        CallVerdict::Hold => 2,
    };
    let mut class_of_call = None;
    let concerned = rules.iter().filter_map(|rule| match &rule.what {
        What::Calls { class, numbers, verdict } if numbers.is_empty() || numbers.contains(&number) => {
            let mut of_class =
                || *class_of_call.get_or_insert_with(|| class_of(classes, pid, number, call.arguments[0]));
            let user = Concerned { of: rule.of, holds: *verdict == CallVerdict::Hold };
            (*class == 0 || of_class() & class != 0).then_some((verdict, user))
        }
        _ => None,
    });
    let (verdicts, users): (Vec<&CallVerdict>, Vec<Concerned>) = concerned.unzip();
    Some((verdicts.into_iter().max_by_key(|verdict| strictness(verdict))?.clone(), users))
}

/// Whether a call is one whose number means what it does here. How a handler of a signal goes back
/// is none that anybody may decide about.
fn native(call: &ptrace::Call) -> bool {
    #[cfg(target_arch = "x86_64")]
    const MACHINE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const MACHINE: u32 = 0xc000_00b7;
    #[cfg(target_arch = "riscv64")]
    const MACHINE: u32 = 0xc000_00f3;
    call.machine == MACHINE && call.number != libc::SYS_rt_sigreturn
}

/// As the kernel program has it (`class_of` in bpf/rmk.bpf.c).
fn class_of(classes: &HashMap<u32, u32>, pid: u32, number: u32, first: u64) -> u32 {
    match classes.get(&number) {
        None => 0,
        Some(&calls::BY_DESCRIPTOR) => class_of_descriptor(pid, first as i32),
        Some(&class) => class,
    }
}

fn class_of_descriptor(pid: u32, fd: i32) -> u32 {
    // Follows the link to the open file itself.
    match std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).map(|found| found.file_type()) {
        Ok(kind) if kind.is_fifo() => calls::IPC,
        Ok(kind) if kind.is_socket() => match domain(pid, fd) {
            Some(libc::AF_UNIX) => calls::NET | calls::IPC,
            _ => calls::NET,
        },
        _ => calls::FILE,
    }
}

/// The family of a socket.
fn domain(pid: u32, fd: i32) -> Option<i32> {
    let process = pidfd::open(pid as i32).ok()?;
    let socket_of_program = pidfd::duplicate(process.as_fd(), fd).ok()?;
    socket::family(socket_of_program.as_fd()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const WATCH: Of = Of { pin: "P_SYSC", user: 1 };
    const HOLD: Of = Of { pin: "P_IPC", user: 2 };

    fn concerned(of: Of) -> Concerned {
        Concerned { of, holds: false }
    }

    fn call(number: i64, first: u64) -> ptrace::Call {
        let machine = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        ptrace::Call { machine, number, arguments: [first, 0, 0, 0, 0, 0] }
    }

    #[test]
    fn the_strictest_verdict_holds_and_all_concerned_are_notified() {
        let classes: HashMap<u32, u32> = calls::classes().into_iter().collect();
        let me = std::process::id();
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let rules = [
            Rule { of: WATCH, what: What::Calls { class: 0, numbers: vec![], verdict: CallVerdict::Pass } },
            Rule { of: HOLD, what: What::Calls { class: calls::IPC, numbers: vec![], verdict: CallVerdict::Hold } },
            Rule { of: WATCH, what: What::Signals { mask: 1 << 14, verdict: Verdict::Drop } },
        ];
        let on = |call: &ptrace::Call| on_call(&rules, &classes, me, call);
        assert_eq!(
            on(&call(libc::SYS_read, reader.as_raw_fd() as u64)),
            Some((CallVerdict::Hold, vec![concerned(WATCH), Concerned { of: HOLD, holds: true }]))
        );
        assert_eq!(
            on(&call(libc::SYS_read, file.as_raw_fd() as u64)),
            Some((CallVerdict::Pass, vec![concerned(WATCH)]))
        );
        assert_eq!(on(&call(libc::SYS_rt_sigreturn, 0)), None);
        assert_eq!(on(&ptrace::Call { machine: 0x4000_0003, ..call(3, 0) }), None, "another machine's numbers");
        assert_eq!(on_signal(&rules, 15), Some((Verdict::Drop, vec![concerned(WATCH)])));
        assert_eq!(on_signal(&rules, 9), None);
    }
}
