//! What a thread does, as a clause.

use orbit_inspect::waits::Wait;

/// What a thread does or waits for: `waits for mutex, held by thread 7 at 0x10 (certain)`.
pub fn words(wait: &Wait) -> String {
    match wait {
        Wait::Running => "runs, or waits for a CPU".into(),
        Wait::Stopped => "is stopped by a signal".into(),
        Wait::Traced { by } => format!("is stopped by its tracer, process {by}"),
        Wait::Ended => "has ended".into(),
        Wait::Hidden(why) => format!("cannot be seen: {why}"),
        Wait::Futex(futex) if futex.lost() => {
            format!("waits for {wait}; nobody holds it now: a wake-up was lost, or the holder died")
        }
        _ => format!("waits for {wait}"),
    }
}
