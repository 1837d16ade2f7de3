//! A program that measures itself: a fork of the bench on one CPU, a member of the host's region,
//! that sends what it measured by a socket.

use orbit_console::out::Failure;
use orbit_linux::{pidfd, process, sched};
use orbit_services::Invitation;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use crate::stats::Samples;

/// Runs `body` in a child and answers the figures that it put into its argument. It joins the
/// region first if it is invited; `joined` runs in the bench once it has, with its process, and
/// what it answers is kept until the child ends.
pub fn run<K>(
    cpu: usize,
    invitation: Option<Invitation>,
    joined: impl FnOnce(i32) -> Result<K, Failure>,
    body: impl FnOnce(&mut Vec<f64>),
) -> Result<(Samples, K), Failure> {
    let (mut here, mut there) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so the child finds every lock free; it ends in this
    // function.
    if let Some(child) = unsafe { process::raw_fork(0) }? {
        drop(there);
        let outcome = follow(&mut here, child.pid, joined);
        if let Some(fd) = &child.pidfd {
            let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
            let _ = pidfd::wait(fd.as_fd(), false);
        }
        return outcome;
    }
    process::close_all_but(&[0, 1, 2, there.as_raw_fd()]);
    let is_ready = process::set_parent_death_signal(libc::SIGKILL)
        .and_then(|()| sched::set_affinity(0, &[cpu]))
        .is_ok_and(|()| invitation.is_none_or(|invitation| invitation.accept().is_ok()));
    if is_ready && there.write_all(b"j").is_ok() && there.read_exact(&mut [0]).is_ok() {
        let mut figures = Vec::new();
        body(&mut figures);
        let bytes: Vec<u8> = figures.iter().flat_map(|figure| figure.to_ne_bytes()).collect();
        let _ = there.write_all(&bytes);
    }
    process::end(0)
}

/// The bench's side.
fn follow<K>(
    here: &mut UnixStream,
    pid: i32,
    joined: impl FnOnce(i32) -> Result<K, Failure>,
) -> Result<(Samples, K), Failure> {
    let lost = |_| Failure::text("a program of the bench exited before it had measured anything");
    here.read_exact(&mut [0]).map_err(lost)?;
    let kept = joined(pid)?;
    here.write_all(b"g").map_err(lost)?;
    let mut bytes = Vec::new();
    here.read_to_end(&mut bytes)?;
    let mut samples = Samples::default();
    for figure in bytes.chunks_exact(8) {
        samples.add_figure(f64::from_ne_bytes(figure.try_into().unwrap_or_default()));
    }
    if samples.figures().is_empty() {
        return Err(Failure::text("a program of the bench exited before it had measured anything"));
    }
    Ok((samples, kept))
}
