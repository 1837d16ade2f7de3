//! The memory that a kept program and its keeper share, as the keeper sees it; `side/side.h` is the
//! program's view of the same bytes.
//!
//! Each structure has one writer, named at its head. The keeper trusts nothing that the program
//! writes: [`crate::shared`] reads each word once and checks it.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// "KEEP".
pub(crate) const MAGIC: u32 = 0x5045_454b;
pub(crate) const VERSION: u32 = 7;
/// What an interrupted logged call answers in the program: ask the log again. No error of the
/// kernel.
pub(crate) const AGAIN: i64 = -1000;
/// [`Orders::family`]: children are kept.
pub(crate) const FAMILY: u32 = 1;
/// The same, of a child that its keeper does not know yet: will be.
pub(crate) const FAMILY_COMES: u32 = 2;
/// No position of the log.
pub(crate) const NOWHERE: u64 = u64::MAX;
/// Size of each of the three structures' pages.
pub(crate) const PAGE: usize = 4096;

/// How logged calls are answered: [`Both::mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Mode {
    /// Calls pass unlogged.
    Off = 0,
    /// Calls are made and logged.
    Record = 1,
    /// Calls are answered from the log in its order.
    Replay = 2,
    // 3, which only the program sets: calls that the log still holds for the same descriptor are
    // answered from it, others are made.
}

/// State of [`Crash::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CrashState {
    /// No thread waits.
    None = 0,
    /// A thread that would die waits for the keeper. Written by the program.
    Crashed = 1,
    /// It shall die of its signal. Written by the keeper.
    GiveUp = 2,
    /// Its replay is proven: it continues. Written by the keeper.
    Accept = 3,
}

/// Children that may begin before the keeper has made memory for another one.
pub(crate) const SPARES: usize = 4;

/// Handlers of which the program's side remembers how they end.
pub(crate) const HANDLERS: usize = 8;

/// When the program's own handlers for fatal signals run: [`Orders::handlers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Handlers {
    /// First, unless they only report and die: those run when the program is given up.
    #[default]
    Auto = 0,
    /// Before each recovery.
    First = 1,
    /// When the program is given up.
    Last = 2,
}

/// Page 0. Written by the keeper only; the program has it read-only.
#[repr(C)]
pub(crate) struct Orders {
    pub magic: AtomicU32,
    pub version: AtomicU32,
    /// Size of the log in bytes, a power of two: how much of the space is used; 0: no log.
    pub log_bytes: AtomicU64,
    /// Size of the signal stack that follows the three pages.
    pub stack_bytes: AtomicU64,
    /// The program: other processes with the library are left alone.
    pub pid: AtomicU32,
    /// Futex. Not 0: the serving thread parks after its next logged call.
    pub ask: AtomicU32,
    /// Robust word: the keeper's thread id; the kernel marks it when that thread ends.
    pub keeper: AtomicU32,
    /// Counts rollbacks.
    pub replay: AtomicU32,
    /// First position of the log that a checkpoint needs.
    pub oldest: AtomicU64,
    /// Position of the input that is answered with end of file in the replay, or [`NOWHERE`].
    pub drop_at: AtomicU64,
    /// Address of the crash that is being recovered from; 0: none.
    pub known_ip: AtomicU64,
    /// When the program's handlers for fatal signals run: a [`Handlers`].
    pub handlers: AtomicU32,
    /// The keeper's process: its descriptors are opened through `/proc`.
    pub keeper_pid: AtomicU32,
    /// Its descriptors of shared memory for children; 0: none.
    pub spares: [AtomicU32; SPARES],
    /// Whether children of fork are kept: 0, [`FAMILY`] or [`FAMILY_COMES`].
    pub family: AtomicU32,
    /// Spares that were taken and replaced.
    pub adopted: AtomicU32,
    /// Not 0: allocations are padded and zeroed, frees delayed.
    pub environment: AtomicU32,
    /// Calls that wait for the next request, a bit each, see [`crate::rules`]; 0: no request mode.
    pub moments: AtomicU32,
    /// Futex. [`News::wishes`] when the newest checkpoint began.
    pub granted: AtomicU32,
    /// Futex. Not 0: there is a checkpoint of the program.
    pub kept: AtomicU32,
    /// Not 0: this process, or one that it makes, is in request mode.
    pub rules: AtomicU32,
    /// Descriptors to which `moments` apply, see [`crate::rules::Calls`].
    pub begins_on: AtomicU32,
    /// Kinds of locks that must be as at the begin for a request to have ended.
    pub locks: AtomicU32,
    /// The signal of the crash that is being recovered from: given up in its replay, the program
    /// dies of it.
    pub signal: AtomicU32,
    /// What brings a request; 0: all reading from sockets.
    pub input: Rule,
    /// What must not differ in a replay; 0: all writing to sockets.
    pub reply: Rule,
    /// What a request ends with; 0: no such call.
    pub ends: Rule,
    /// System calls that change nothing outside, a bit each.
    pub inside: [AtomicU64; 8],
    /// When the checkpoint was taken from which is replayed: ns of the real-time clock.
    pub since: AtomicU64,
    /// What `log_bytes` may grow to, a power of two.
    pub log_space: AtomicU64,
}

/// Calls of one kind in a request, see [`crate::rules::Calls`].
#[repr(C)]
pub(crate) struct Rule {
    pub calls: AtomicU32,
    pub on: AtomicU32,
}

/// Page 1. Written by the program only.
#[repr(C)]
pub(crate) struct News {
    /// Futex. Grows when the keeper should wake.
    pub bell: AtomicU32,
    /// 1: the library is set up.
    pub ready: AtomicU32,
    /// Depth of logged calls of the serving thread.
    pub busy: AtomicU32,
    /// 1: the serving thread is parked at a safe point.
    pub parked: AtomicU32,
    /// Address of the syscall instruction of logged calls.
    pub syscall_ip: AtomicU64,
    /// Thread id of the serving thread.
    pub serving: AtomicU32,
    /// Thread in a handler of the program for a fatal signal.
    pub dying_tid: AtomicU32,
    /// Stack pointer when that handler began; 0: no such handler runs.
    pub dying_sp: AtomicU64,
    /// Grows each time the log was full and no checkpoint came.
    pub log_lost: AtomicU32,
    /// Descriptor of the last output that differed.
    pub mismatch_fd: AtomicI32,
    /// Outputs to sockets that differed from what was sent before the crash.
    pub mismatched: AtomicU64,
    /// Replays that left the log's order.
    pub diverged: AtomicU64,
    /// Calls answered from the log.
    pub replayed: AtomicU64,
    /// Descriptor of the input dropped last.
    pub dropped_fd: AtomicI32,
    /// 1: that handler was installed for one signal only: the program ends after it.
    pub is_last: AtomicU32,
    /// Spares taken for children, one after the other.
    pub claimed: AtomicU32,
    /// 1: the serving thread has waited for input: its start is over.
    pub has_waited: AtomicU32,
    /// The call that left the log's order and its descriptor, and what the log has there.
    pub asked_nr: AtomicU32,
    pub asked_fd: AtomicI32,
    pub logged_nr: AtomicU32,
    pub logged_fd: AtomicI32,
    /// In a child's: its process id, 0 until it has begun.
    pub pid: AtomicU32,
    /// Children made that are not kept.
    pub children: AtomicU32,
    /// Checkpoints that the program has asked for.
    pub wishes: AtomicU32,
    /// Grows with each stack for signals that is set.
    pub stacks: AtomicU32,
    /// Outputs to files and pipes that differed from what was written before the crash.
    pub other_lines: AtomicU64,
    /// The handler of the program that was called last, and the instruction at which.
    pub called: AtomicU64,
    pub called_ip: AtomicU64,
    /// Handlers after which the signal came again.
    pub died: [AtomicU64; HANDLERS],
    /// Handlers after which the program continued.
    pub resumed: [AtomicU64; HANDLERS],
    /// Where the log stood when the serving thread last came to wait for a request.
    pub moment: AtomicU64,
    /// 1: it waits there.
    pub at_moment: AtomicU32,
    /// How often it has come there.
    pub moment_count: AtomicU32,
    /// Programs that have begun in the process: grows with each exec.
    pub images: AtomicU32,
    /// 1: a request has ended and the next has not begun.
    pub between: AtomicU32,
    /// Grows when waits for input have failed many times in a row.
    pub failed_waits: AtomicU32,
    /// How, negative.
    pub failed_errno: AtomicI32,
    /// Inputs from sockets that other threads than the serving one have read.
    pub others_read: AtomicU64,
    /// The system calls of the library itself, which pass in a replay.
    pub text: AtomicU64,
    pub text_end: AtomicU64,
    /// Address of [`Both::confined`] in the program.
    pub confined: AtomicU64,
    /// Address of the handler for fatal signals.
    pub handler: AtomicU64,
    /// Not 0: a call waits for so many bytes of room in the log.
    pub wanted: AtomicU64,
    /// The furthest that replays had come in the log when the program did something outside by a
    /// call that is in no log.
    pub outside_at: AtomicU64,
}

/// Page 2. Written by the program, and by the keeper while the program is stopped.
#[repr(C)]
pub(crate) struct Both {
    pub mode: AtomicU32,
    /// 1: the kernel hands other calls of the serving thread than the library's to the library.
    pub confined: AtomicU8,
    /// 1: the kernel looks at `confined`.
    pub is_confined: AtomicU8,
    pub reserved: AtomicU16,
    /// Where the next entry goes.
    pub head: AtomicU64,
    /// In [`Mode::Replay`]: the next entry.
    pub cursor: AtomicU64,
    /// Position of the last entry that brought bytes from a socket, or [`NOWHERE`].
    pub last_input: AtomicU64,
    /// In [`Mode::Tail`]: first entry that may still be of use.
    pub tail_at: AtomicU64,
    pub tail_end: AtomicU64,
    pub crash: Crash,
}

/// What a thread that would die says of its crash. Written by it, but for [`CrashState::GiveUp`]
/// and the reset.
#[repr(C)]
pub(crate) struct Crash {
    /// Futex: a [`CrashState`].
    pub state: AtomicU32,
    /// 0: no crash, the replay has left the log's order.
    pub signal: AtomicU32,
    pub code: AtomicI32,
    pub tid: AtomicU32,
    /// `si_addr`.
    pub address: AtomicU64,
    pub ip: AtomicU64,
    pub sp: AtomicU64,
    pub bp: AtomicU64,
    /// Position of the log when the crash began.
    pub head: AtomicU64,
    /// In DWARF's order.
    pub regs: [AtomicU64; 17],
}

const _: () = assert!(size_of::<Orders>() == 232 && size_of::<News>() == 360 && size_of::<Both>() == 240);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::process::Command;

    /// The C header and the structures here describe the same bytes.
    #[test]
    fn both_views_agree() {
        let folder = std::env::temp_dir().join(format!("orbit-keep-layout-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (source, program) = (folder.join("layout.c"), folder.join("layout"));
        let fields = [
            ("orders", "ask", offset_of!(Orders, ask)),
            ("orders", "oldest", offset_of!(Orders, oldest)),
            ("orders", "known_ip", offset_of!(Orders, known_ip)),
            ("orders", "spares", offset_of!(Orders, spares)),
            ("news", "claimed", offset_of!(News, claimed)),
            ("news", "pid", offset_of!(News, pid)),
            ("news", "serving", offset_of!(News, serving)),
            ("news", "dying_sp", offset_of!(News, dying_sp)),
            ("news", "dropped_fd", offset_of!(News, dropped_fd)),
            ("news", "mismatched", offset_of!(News, mismatched)),
            ("orders", "granted", offset_of!(Orders, granted)),
            ("orders", "kept", offset_of!(Orders, kept)),
            ("orders", "ends", offset_of!(Orders, ends)),
            ("orders", "inside", offset_of!(Orders, inside)),
            ("orders", "since", offset_of!(Orders, since)),
            ("orders", "log_space", offset_of!(Orders, log_space)),
            ("news", "handler", offset_of!(News, handler)),
            ("news", "wanted", offset_of!(News, wanted)),
            ("news", "outside_at", offset_of!(News, outside_at)),
            ("both", "confined", offset_of!(Both, confined)),
            ("news", "between", offset_of!(News, between)),
            ("news", "failed_waits", offset_of!(News, failed_waits)),
            ("news", "others_read", offset_of!(News, others_read)),
            ("news", "wishes", offset_of!(News, wishes)),
            ("news", "stacks", offset_of!(News, stacks)),
            ("news", "images", offset_of!(News, images)),
            ("news", "resumed", offset_of!(News, resumed)),
            ("both", "head", offset_of!(Both, head)),
            ("both", "tail_end", offset_of!(Both, tail_end)),
            ("both", "crash", offset_of!(Both, crash)),
            ("both", "crash.regs", offset_of!(Both, crash.regs)),
        ];
        let mut text = format!(
            "#include <stddef.h>\n#include \"{}/side/side.h\"\nint main(void) \
             {{ return !(sizeof(struct keep_orders) == {} && \
             sizeof(struct keep_news) == {} && sizeof(struct keep_both) == {}",
            env!("CARGO_MANIFEST_DIR"),
            size_of::<Orders>(),
            size_of::<News>(),
            size_of::<Both>()
        );
        for (of, field, at) in fields {
            text += &format!(" && offsetof(struct keep_{of}, {field}) == {at}");
        }
        text += "); }\n";
        std::fs::write(&source, text).expect("written");
        let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).status().expect("cc");
        assert!(compiled.success());
        let agree = Command::new(&program).status().expect("runs").success();
        std::fs::remove_dir_all(folder).expect("removed");
        assert!(agree, "side.h and layout.rs differ");
    }
}
