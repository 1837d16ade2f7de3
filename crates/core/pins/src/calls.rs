//! P_SYSC, P_FILE, P_NET, P_IPC: system calls of programs, begun and completed, with result and
//! duration. The four differ in the calls they see and in their operations. Which class a call
//! belongs to is decided in the kernel program: by its number, or, for calls like read(2), by what
//! its descriptor is.
//!
//! Interception: calls of one process are passed, rejected, or held back until a module decides, by
//! ptrace. A filter (seccomp) would cost calls that are not intercepted less, but nothing takes one
//! away from a process again.
//!
//! Fallback without kernel programs: the operations and interception only.

use super::{
    descriptors, holders, kernel, proc,
    traced::{self, Traced},
    tracer::{Decision, Interception, What},
};
use orbit_rmk::{CallVerdict, Command, Env, Kind, Pin, PinError, PinKind, Probe, Reply, Subscription};
use std::sync::Arc;

const EVENTS: &[Kind] = &[Kind::CallBegun, Kind::CallCompleted, Kind::CallIntercepted];
// As in bpf/rmk.h.
pub(super) const FILE: u32 = 1;
pub(super) const NET: u32 = 2;
pub(super) const IPC: u32 = 4;
pub(super) const BY_DESCRIPTOR: u32 = 8;

pub(super) const SYSC: PinKind = PinKind {
    name: "P_SYSC",
    about: "system calls: events when they begin and complete, and the call each thread is in",
    facility: "kernel programs at system calls; interception by ptrace",
    operations: &["CallsNow", "CallIntercept", "CallDecide", "CallRelease"],
    events: EVENTS,
    probe: &probe,
    load: &|env| load(env, "P_SYSC", 0),
};
pub(super) const FILE_PIN: PinKind = PinKind {
    name: "P_FILE",
    about: "files: events of calls on them; list, read, write and seek a program's open files",
    facility: "kernel programs at system calls on files; interception by ptrace",
    operations: &["OpenFiles", "FileRead", "FileWrite", "FileSeek", "CallIntercept", "CallDecide", "CallRelease"],
    events: EVENTS,
    probe: &probe,
    load: &|env| load(env, "P_FILE", FILE),
};
pub(super) const NET_PIN: PinKind = PinKind {
    name: "P_NET",
    about: "network: events of sending, arrival and connections; list a program's sockets, and who holds a connection",
    facility: "kernel programs at system calls on sockets; interception by ptrace",
    operations: &["Sockets", "SocketHolders", "CallIntercept", "CallDecide", "CallRelease"],
    events: EVENTS,
    probe: &probe,
    load: &|env| load(env, "P_NET", NET),
};
pub(super) const IPC_PIN: PinKind = PinKind {
    name: "P_IPC",
    about: "pipes, UNIX sockets, queues, semaphores, shared memory: events of calls on them, and what waits in them",
    facility: "kernel programs at system calls on channels; interception by ptrace",
    operations: &["Channels", "ChannelWrite", "CallIntercept", "CallDecide", "CallRelease"],
    events: EVENTS,
    probe: &probe,
    load: &|env| load(env, "P_IPC", IPC),
};

fn load(env: &Env, pin: &'static str, class: u32) -> Result<Box<dyn Pin>, PinError> {
    Ok(Box::new(Calls { class, traced: Traced::new(env), interception: Interception::new(env, pin) }))
}

fn probe(env: &Env) -> Probe {
    match traced::probe(env) {
        Probe::Fallback(_) => Probe::Fallback(format!(
            "its operations, and interception with its events only: {}",
            kernel::support(env).err().unwrap_or_default()
        )),
        other => other,
    }
}

struct Calls {
    class: u32,
    traced: Traced,
    interception: Interception,
}

impl Pin for Calls {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match (self.class, command) {
            (0, Command::CallsNow { pid }) => return Ok(Reply::Calls { calls: proc::calls_now(*pid)? }),
            (FILE, Command::OpenFiles { pid }) => return Ok(Reply::Files { files: descriptors::files(*pid)? }),
            (FILE, Command::FileRead { pid, fd, offset, length }) => {
                return descriptors::read(*pid, *fd, *offset, *length);
            }
            (FILE, Command::FileWrite { pid, fd, offset, bytes }) => {
                return descriptors::write(*pid, *fd, *offset, bytes);
            }
            (FILE, Command::FileSeek { pid, fd, offset }) => return descriptors::seek(*pid, *fd, *offset),
            (NET, Command::Sockets { pid }) => return Ok(Reply::Sockets { sockets: descriptors::sockets(*pid)? }),
            (NET, Command::SocketHolders { local, peer }) => {
                return Ok(Reply::Holders { holders: holders::holders(local, peer)? });
            }
            (IPC, Command::Channels { pid }) => return Ok(Reply::Channels { channels: descriptors::channels(*pid)? }),
            (IPC, Command::ChannelWrite { pid, fd, bytes }) => return descriptors::channel_write(*pid, *fd, bytes),
            (class, Command::CallIntercept { pid, calls, verdict }) => {
                possible(verdict)?;
                let what = What::Calls { class, numbers: calls.clone(), verdict: verdict.clone() };
                self.interception.intercept(user, *pid, what)?;
            }
            (_, Command::CallDecide { verdict: CallVerdict::Hold, .. }) => {
                return Err(PinError::Refused("a held call is held already: decide Pass or Refuse".into()));
            }
            (_, Command::CallDecide { ticket, verdict }) => {
                possible(verdict)?;
                self.interception.decide(user, *ticket, Decision::Call(verdict.clone()))?;
            }
            (_, Command::CallRelease { pid }) => self.interception.release(user, *pid)?,
            _ => return Err(PinError::NotMine),
        }
        Ok(Reply::Done)
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        let programs: &[&str] = match subscription.kind {
            Kind::CallBegun => &["call_begun"],
            Kind::CallCompleted => &["call_begun", "call_completed"],
            Kind::CallIntercepted => return self.interception.subscribe(subscription),
            _ => return Err(PinError::NotMine),
        };
        self.traced.subscribe(subscription, programs, u64::from(self.class))
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.traced.unsubscribe(subscription);
        self.interception.unsubscribe(subscription);
    }

    fn forget(&mut self, user: u64) {
        self.interception.forget(user);
    }
}

/// Whether calls can be rejected here, and with this error: the kernel has other numbers for its
/// own use.
fn possible(verdict: &CallVerdict) -> Result<(), PinError> {
    match verdict {
        CallVerdict::Refuse { .. } if !cfg!(target_arch = "x86_64") => {
            Err(PinError::Refused("calls are refused on x86-64 only".into()))
        }
        CallVerdict::Refuse { errno } if !(1..512).contains(errno) => {
            Err(PinError::Refused(format!("{errno} is no error of a call: 1 to 511")))
        }
        _ => Ok(()),
    }
}

/// The class of each system call that has one.
pub(crate) fn classes() -> Vec<(u32, u32)> {
    use libc::*;
    let by_descriptor = [
        SYS_read,
        SYS_write,
        SYS_readv,
        SYS_writev,
        SYS_close,
        SYS_dup,
        SYS_fcntl,
        SYS_ioctl,
        SYS_fstat,
        SYS_preadv,
        SYS_pwritev,
        SYS_preadv2,
        SYS_pwritev2,
        SYS_splice,
        SYS_tee,
        SYS_vmsplice,
    ];
    let file = [
        SYS_openat,
        SYS_openat2,
        SYS_pread64,
        SYS_pwrite64,
        SYS_lseek,
        SYS_fsync,
        SYS_fdatasync,
        SYS_ftruncate,
        SYS_truncate,
        SYS_fallocate,
        SYS_newfstatat,
        SYS_statx,
        SYS_getdents64,
        SYS_flock,
        SYS_unlinkat,
        SYS_renameat2,
        SYS_linkat,
        SYS_mkdirat,
        SYS_sync_file_range,
        SYS_copy_file_range,
        SYS_sync,
        SYS_syncfs,
        SYS_readahead,
    ];
    let net = [
        SYS_socket,
        SYS_bind,
        SYS_listen,
        SYS_connect,
        SYS_accept,
        SYS_accept4,
        SYS_sendto,
        SYS_recvfrom,
        SYS_sendmsg,
        SYS_recvmsg,
        SYS_sendmmsg,
        SYS_recvmmsg,
        SYS_shutdown,
        SYS_getsockopt,
        SYS_setsockopt,
        SYS_getsockname,
        SYS_getpeername,
    ];
    let ipc = [
        SYS_pipe2,
        SYS_socketpair,
        SYS_eventfd2,
        SYS_msgget,
        SYS_msgsnd,
        SYS_msgrcv,
        SYS_msgctl,
        SYS_semget,
        SYS_semop,
        SYS_semtimedop,
        SYS_semctl,
        SYS_shmget,
        SYS_shmat,
        SYS_shmdt,
        SYS_shmctl,
        SYS_mq_open,
        SYS_mq_unlink,
        SYS_mq_timedsend,
        SYS_mq_timedreceive,
        SYS_mq_notify,
        SYS_mq_getsetattr,
        SYS_futex,
    ];
    #[cfg(target_arch = "x86_64")]
    let old = [
        (SYS_open, FILE),
        (SYS_creat, FILE),
        (SYS_stat, FILE),
        (SYS_lstat, FILE),
        (SYS_unlink, FILE),
        (SYS_rename, FILE),
        (SYS_link, FILE),
        (SYS_mkdir, FILE),
        (SYS_rmdir, FILE),
        (SYS_getdents, FILE),
        (SYS_dup2, BY_DESCRIPTOR),
        (SYS_pipe, IPC),
        (SYS_eventfd, IPC),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let old: [(c_long, u32); 0] = [];
    let sets: [(&[c_long], u32); 4] = [(&by_descriptor, BY_DESCRIPTOR), (&file, FILE), (&net, NET), (&ipc, IPC)];
    let new = sets.into_iter().flat_map(|(calls, class)| calls.iter().map(move |call| (*call, class)));
    new.chain(old).map(|(call, class)| (call as u32, class)).chain([(SYS_sendfile as u32, BY_DESCRIPTOR)]).collect()
}
