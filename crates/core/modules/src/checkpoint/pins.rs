//! P_MEM and P_SIG with checkpoints and held fatal signals.

use super::programs::{FIRST_TICKET, Programs};
use orbit_keep::engine::{Checkpoint, Options};
use orbit_rmk::{Command, Env, Kind, Pin, PinError, PinKind, Reply, Subscription, Verdict};
use std::sync::Arc;
use std::time::Duration;

const MEM: &str = "P_MEM";
const SIG: &str = "P_SIG";
/// The operations, those of `orbit-pins` first; a test compares.
const MEM_OPERATIONS: [&str; 10] = [
    "MemoryRead",
    "MemoryWrite",
    "MemoryMap",
    "PagesWatch",
    "PagesCollect",
    "PagesForget",
    "PagesSet",
    "CheckpointTake",
    "CheckpointList",
    "CheckpointRestore",
];
const SIG_OPERATIONS: [&str; 5] = ["SignalIntercept", "SignalDecide", "SignalRelease", "SignalSend", "FatalHold"];
const SIG_EVENTS: [Kind; 4] = [Kind::SignalRaised, Kind::SignalDelivered, Kind::SignalIntercepted, Kind::SignalFatal];
/// Checkpoints of a program that are kept at most.
const GENERATIONS: u32 = 16;
/// Longest time between two checkpoints.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Memory for pages of one program's checkpoints.
const MEMORY: u64 = 4 << 30;

/// The twelve pins, two of them with what keep can do to a running program.
pub fn all() -> [PinKind; 12] {
    orbit_pins::all().map(|kind| match kind.name {
        MEM => PinKind { operations: &MEM_OPERATIONS, load: &load_mem, ..kind },
        SIG => PinKind { operations: &SIG_OPERATIONS, events: &SIG_EVENTS, load: &load_sig, ..kind },
        _ => kind,
    })
}

/// Loads the pin of `orbit-pins` of this name, and what both pins share.
fn load(name: &str, env: &Env) -> Result<(Box<dyn Pin>, Arc<Programs>), PinError> {
    let missing = || PinError::Refused(format!("there is no pin {name}"));
    let kind = orbit_pins::all().into_iter().find(|kind| kind.name == name).ok_or_else(missing)?;
    Ok(((kind.load)(env)?, env.shared(|| Ok(Arc::default()))?))
}

fn load_mem(env: &Env) -> Result<Box<dyn Pin>, PinError> {
    let (base, programs) = load(MEM, env)?;
    Ok(Box::new(Mem { base, programs }))
}

fn load_sig(env: &Env) -> Result<Box<dyn Pin>, PinError> {
    let (base, programs) = load(SIG, env)?;
    Ok(Box::new(Sig { base, programs }))
}

struct Mem {
    base: Box<dyn Pin>,
    programs: Arc<Programs>,
}

fn refused(pid: u32, what: &str, why: &dyn std::fmt::Display) -> PinError {
    PinError::Refused(format!("process {pid}: {what}: {why}"))
}

impl Mem {
    fn take(&self, user: u64, pid: u32, generations: u32, interval_ns: u64) -> Result<Reply, PinError> {
        let interval = Duration::from_nanos(interval_ns);
        if !(1..=GENERATIONS).contains(&generations) || interval.is_zero() || interval > INTERVAL {
            let (most, longest) = (GENERATIONS, INTERVAL.as_secs());
            return Err(PinError::Refused(format!(
                "{generations} checkpoints, one in {interval:?}: 1 to {most}, one in at most {longest} s"
            )));
        }
        let options = Options { generations: generations as usize, interval, memory: MEMORY };
        self.programs.enter(pid, (MEM, user), |engine, has_options| {
            if !std::mem::replace(has_options, true) {
                engine.set_options(options);
            }
            match engine.checkpoint().map_err(|error| refused(pid, "no checkpoint", &error))? {
                Checkpoint::Taken { pages, pause } => Ok(Reply::Checkpoint {
                    pages: pages as u64,
                    stopped_ns: pause.as_nanos() as u64,
                    held: engine.held(),
                }),
                Checkpoint::PutOff => {
                    Err(refused(pid, "the checkpoint is put off", &"a thread has crashed, or is about to"))
                }
            }
        })
    }

    fn restore(&self, pid: u32, nth: u32) -> Result<Reply, PinError> {
        self.programs.with(pid, |engine| {
            let done = engine.restore(nth as usize);
            let (restored, stopped) = done.map_err(|error| refused(pid, "it is not put back", &error))?;
            let stopped_ns = stopped.as_nanos() as u64;
            Ok(Reply::Restored { pages: restored.pages as u64, stopped_ns, left: restored.left })
        })
    }
}

impl Pin for Mem {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::CheckpointTake { pid, generations, interval_ns } => {
                self.take(user, *pid, *generations, *interval_ns)
            }
            Command::CheckpointList { pid } => self.programs.with(*pid, |engine| {
                Ok(Reply::Checkpoints { ages_ns: engine.ages().iter().map(|age| age.as_nanos() as u64).collect() })
            }),
            Command::CheckpointRestore { pid, nth } => self.restore(*pid, *nth),
            other => self.base.command(user, other),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        self.base.subscribe(subscription)
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.base.unsubscribe(subscription);
    }

    fn forget(&mut self, user: u64) {
        self.programs.forget((MEM, user));
        self.base.forget(user);
    }
}

struct Sig {
    base: Box<dyn Pin>,
    programs: Arc<Programs>,
}

impl Pin for Sig {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::FatalHold { pid } => self.programs.enter(*pid, (SIG, user), |_, _| Ok(Reply::Done)),
            Command::SignalDecide { ticket, verdict } if *ticket >= FIRST_TICKET => match verdict {
                Verdict::Pass => self.programs.give_up(*ticket).map(|()| Reply::Done),
                _ => Err(PinError::Refused(
                    "a thread held at a fatal signal dies of it (Pass), or its process is put back (CheckpointRestore \
                     of P_MEM)"
                        .into(),
                )),
            },
            other => self.base.command(user, other),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        if subscription.kind == Kind::SignalFatal {
            self.programs.listen(subscription);
            return Ok(());
        }
        self.base.subscribe(subscription)
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.programs.stop_listening(subscription);
        self.base.unsubscribe(subscription);
    }

    fn forget(&mut self, user: u64) {
        self.programs.forget((SIG, user));
        self.base.forget(user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pins_of_the_floor_below_are_whole() {
        for (kind, mine) in orbit_pins::all().iter().zip(all()) {
            assert_eq!(kind.name, mine.name);
            assert_eq!(kind.operations, &mine.operations[..kind.operations.len()], "{}", kind.name);
            assert_eq!(kind.events, &mine.events[..kind.events.len()], "{}", kind.name);
        }
    }
}
