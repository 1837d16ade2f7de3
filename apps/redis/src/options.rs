//! The module's arguments: `loadmodule liborbit_redis.so NAME VALUE NAME VALUE ...`

use std::time::Duration;

use crate::record::MAX_RECORD;

/// Where the slow log's task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In an orbit.
    Orbit,
    /// In Redis' own thread, for comparison.
    Inside,
    /// Nowhere: the module does nothing.
    Off,
}

/// What the arguments say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the task runs.
    pub mode: Mode,
    /// Commands that take at least so many microseconds are slow; `None`: as Redis has it
    /// configured.
    pub threshold: Option<i64>,
    /// Each n-th command is noted too, however fast; 0: none.
    pub every: u32,
    /// Most entries of the log.
    pub max_len: u64,
    /// Bytes of the ring between Redis and the orbit.
    pub ring: usize,
    /// How long the orbit may take for a call.
    pub deadline: Duration,
    /// Bytes of memory the orbit may use.
    pub memory: u64,
    /// Whether `ORBIT.FAULT` is there.
    pub faults: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: Mode::Orbit,
            threshold: None,
            every: 0,
            max_len: 128,
            ring: 256 << 10,
            deadline: Duration::from_secs(1),
            memory: 64 << 20,
            faults: false,
        }
    }
}

impl Options {
    /// Reads the arguments. An error names the argument, its value, and what may stand there.
    pub fn parse(args: &[&[u8]]) -> Result<Options, String> {
        let mut options = Options::default();
        for pair in args.chunks(2) {
            let name = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
            let Some(value) = pair.get(1) else { return Err(format!("argument {name} has no value")) };
            let value = String::from_utf8_lossy(value).to_ascii_lowercase();
            let number = |least: u64, most: u64| match value.parse::<u64>() {
                Ok(n) if (least..=most).contains(&n) => Ok(n),
                _ => Err(format!("{name} {value}: a number from {least} to {most} is wanted")),
            };
            match name.as_str() {
                "mode" => {
                    options.mode = match value.as_str() {
                        "orbit" => Mode::Orbit,
                        "inside" => Mode::Inside,
                        "off" => Mode::Off,
                        _ => return Err(format!("mode {value}: there are orbit, inside and off")),
                    }
                }
                "threshold" => options.threshold = Some(number(0, 1 << 40)? as i64),
                "every" => options.every = number(0, u64::from(u32::MAX))? as u32,
                "max-len" => options.max_len = number(0, 1 << 20)?,
                "ring-kb" => options.ring = (number(16, 1 << 20)? as usize) << 10,
                "deadline-ms" => options.deadline = Duration::from_millis(number(10, 60_000)?),
                "memory-mb" => options.memory = number(16, 1 << 20)? << 20,
                "faults" => {
                    options.faults = match value.as_str() {
                        "yes" => true,
                        "no" => false,
                        _ => return Err(format!("faults {value}: there are yes and no")),
                    }
                }
                _ => {
                    return Err(format!(
                        "{name} is no argument of this module; there are mode, threshold, every, max-len, ring-kb, \
                         deadline-ms, memory-mb, faults"
                    ));
                }
            }
        }
        Ok(options)
    }
}

// The least ring holds some entries of the largest size.
const _: () = assert!(2 * MAX_RECORD < 16 << 10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_refused_by_name() {
        let options = Options::parse(&[b"MODE", b"inside", b"max-len", b"7", b"threshold", b"0"]).expect("good");
        assert_eq!((options.mode, options.max_len, options.threshold), (Mode::Inside, 7, Some(0)));
        for (bad, part) in [
            (&[b"mode".as_slice(), b"outside"][..], "mode outside"),
            (&[b"every", b"-1"], "every -1"),
            (&[b"nonsense", b"1"], "nonsense"),
            (&[b"mode"], "no value"),
        ] {
            assert!(Options::parse(bad).expect_err("bad").contains(part));
        }
    }
}
