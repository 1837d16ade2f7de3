//! What a thread does, as a clause.

use orbit_inspect::waits::Wait;

/// What a thread does or waits for: `waits for mutex at 0x10, held by thread 7 (certain)`.
pub fn words(wait: &Wait) -> String {
    match wait {
        Wait::Running => "runs, or waits for a CPU".into(),
        Wait::Stopped => "is stopped by a signal".into(),
        Wait::Traced { by } => format!("is stopped by its tracer, process {by}"),
        Wait::Ended => "has ended".into(),
        Wait::Hidden(why) => format!("cannot be seen: {why}"),
        Wait::Futex(futex) if futex.lost() => {
            format!("waits for {wait}; nobody is left to release it: a wake-up was lost, or its holder has ended")
        }
        _ => format!("waits for {wait}"),
    }
}
