//! What a step of a checkpoint costs as a command through the core of `rmk`, beside keep's own way:
//! written pages of another process are read.

use super::super::Bench;
use super::super::stats::Samples;
use super::kept::failed;
use super::{Own, Results, subject};
use orbit_console::out::Failure;
use orbit_linux::child::Exit;
use orbit_linux::{maps, remote_pages};
use orbit_rmk::Command as Order;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// About as many pages as gzip writes between two checkpoints, none beside another.
const PAGES: u64 = 144;
const ROUNDS: usize = 50;

/// A process whose memory is read: killed with it.
pub(super) struct Subject(pub Child);

impl Subject {
    /// It holds 16 MiB and writes to a hundredth of it.
    pub fn start() -> Result<Subject, Failure> {
        let command = subject::command("write", 16, 1, 60_000)?;
        let mut run = Command::new(&command[0]);
        Ok(Subject(run.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait_for_exit();
    }
}

/// Reads the pages both ways; they take turns.
pub fn pages(results: &mut Results, bench: &mut Bench) -> Result<(), Failure> {
    let subject = Subject::start()?;
    let pid = subject.0.id() as i32;
    let addresses = addresses(pid)?;
    let failure = |e: orbit_rmk::Error| Failure::Text(e.to_string());
    let core = orbit_pins::core().map_err(failure)?;
    let module = core.client("bench");
    module.use_pin("P_MEM").map_err(failure)?;
    let (mut ours, mut through) = (Samples::default(), Samples::default());
    let mut room = vec![[0u8; PAGE as usize]; addresses.len()];
    for _ in 0..ROUNDS {
        let since = Instant::now();
        let read = remote_pages::read(pid, &addresses, &mut room)?;
        ours.add_figure(since.elapsed().as_secs_f64() * 1e6);
        if read != addresses.len() {
            return Err(failed("a page of the subject cannot be read"));
        }
        let since = Instant::now();
        for address in &addresses {
            let order = Order::MemoryRead { pid: pid as u32, address: *address, length: PAGE };
            module.issue_cmd("P_MEM", &order).map_err(failure)?;
        }
        through.add_figure(since.elapsed().as_secs_f64() * 1e6);
    }
    let name = format!("{PAGES} written pages read in the pause");
    results.add(&name, "us", ours.summary(), &[("P_MEM", through.summary())], None, Own::default());
    bench.note("P_MEM: a command a page, from a client in the core's process; a module in an orbit adds two messages \
        a command".to_owned());
    Ok(())
}

/// Every other page of the subject's memory, once it is there.
pub(super) fn addresses(pid: i32) -> Result<Vec<u64>, Failure> {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        let large = maps::of(pid)?.into_iter().find(|e| e.inode == 0 && e.end - e.start >= 16 << 20 && !e.shared);
        if let Some(entry) = large {
            // Its first pages were written before it came to its loop.
            std::thread::sleep(Duration::from_millis(200));
            return Ok((0..PAGES).map(|nth| entry.start + 2 * nth * PAGE).collect());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(failed("the subject has no memory"))
}
