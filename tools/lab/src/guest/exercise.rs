//! One life of a copy of the driver, in a process of its own, which an exception may kill: loads it
//! with one byte altered, uses it from several threads, compares what it says with what is right,
//! unloads it.

use super::{Failed, machine::pin};
use orbit_linux::modules;
use std::{
    fs::File,
    io::{Read, Write},
    process,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The driver's object file, and the name it was built under.
pub const DRIVER: &str = "/orbit_crc_00.ko";
const NAME: &[u8] = b"orbit_crc_00";
/// How long it is used.
const USE: Duration = Duration::from_millis(1500);
/// More than the driver has places for.
const CALLERS: usize = 12;

/// Exit statuses.
pub const WRONG: i32 = 3;
pub const REFUSED: i32 = 4;
pub const NOT_LOADED: i32 = 5;

/// CRC-32, bit by bit.
fn sum_of(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
    })
}

/// The file with its name replaced by one as long, so that many copies can be loaded.
fn renamed(mut file: Vec<u8>, name: &str) -> Vec<u8> {
    let mut at = 0;
    while let Some(found) = file[at..].windows(NAME.len()).position(|part| part == NAME) {
        file[at + found..at + found + NAME.len()].copy_from_slice(name.as_bytes());
        at += found + NAME.len();
    }
    file
}

/// Loads copy `name` with byte `at` of its file set to `value`, and uses it from every CPU or from
/// one only. Does not return but by ending the process, unless the lab itself is broken.
pub fn run(name: &str, at: usize, value: u8, one_cpu: bool) -> Result<bool, Failed> {
    if one_cpu {
        // The driver's timer and work items then stay there too.
        pin(1);
    }
    let file = std::fs::read(DRIVER).map_err(|e| format!("reading {DRIVER}: {e}"))?;
    if name.len() != NAME.len() || at >= file.len() {
        return Err(format!("no place {at} in {DRIVER}, or name {name:?} of another length"));
    }
    let mut file = renamed(file, name);
    file[at] = value;
    if modules::load(&file).is_err() {
        process::exit(NOT_LOADED);
    }
    let (wrong, refused) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (wrong, refused) = (&wrong, &refused);
            scope.spawn(move || {
                let begun = Instant::now();
                let Ok(mut device) = File::options().read(true).write(true).open(format!("/dev/{name}")) else {
                    refused.store(true, Relaxed);
                    return;
                };
                let mut data = vec![0u8; 4096];
                let mut turn = caller;
                while begun.elapsed() < USE && !refused.load(Relaxed) {
                    turn += 1;
                    data[turn % 97] = turn as u8;
                    let block = &data[..1 + turn * 131 % 4096];
                    let mut sum = [0; 4];
                    match device.write(block).and_then(|n| device.read_exact(&mut sum).map(|()| n)) {
                        Ok(n) if n == block.len() && u32::from_ne_bytes(sum) == sum_of(block) => {}
                        Ok(_) => wrong.store(true, Relaxed),
                        Err(_) => refused.store(true, Relaxed),
                    }
                }
            });
        }
    });
    // One that stays loaded ends with the machine.
    let _ = modules::unload(name);
    process::exit(match (wrong.into_inner(), refused.into_inner()) {
        (true, _) => WRONG,
        (_, true) => REFUSED,
        _ => 0,
    })
}
