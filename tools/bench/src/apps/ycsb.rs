//! The load of the paper's two Redis tasks: 32 clients, 95 % reads and 5 % writes.

use crate::stats::Shuffle;
use orbit_console::out::Failure;
use orbit_redis_rdb::{Connection, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const CLIENTS: usize = 32;
/// Of so many requests one writes.
const A_WRITE: usize = 20;

/// Runs the clients on keys `key:0` to `key:KEYS` for this time; returns requests a second.
pub fn load(server: &Server, keys: usize, value: usize, time: Duration) -> Result<f64, Failure> {
    let stop = AtomicBool::new(false);
    let value = "v".repeat(value);
    let began = Instant::now();
    let counts = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                scope.spawn({
                    let (stop, value) = (&stop, &value);
                    move || client(server, nth, keys, value, stop)
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap_or(Ok(0))).collect::<Vec<_>>()
    });
    let took = began.elapsed().as_secs_f64();
    let mut all = 0;
    for count in counts {
        all += count?;
    }
    Ok(all as f64 / took)
}

fn client(server: &Server, nth: usize, keys: usize, value: &str, stop: &AtomicBool) -> std::io::Result<u64> {
    let mut connection = Connection::open(&server.socket())?;
    let mut shuffle = Shuffle::new(nth as u64 + 1);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = format!("key:{}", shuffle.below(keys));
        let said = if shuffle.below(A_WRITE) == 0 {
            connection.run(&["SET", &key, value])?
        } else {
            connection.run(&["GET", &key])?
        };
        if said.starts_with('-') {
            return Err(std::io::Error::other(said));
        }
        count += 1;
    }
    Ok(count)
}
