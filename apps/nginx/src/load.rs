//! Load: clients that put and get files, each its own, until they are stopped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Client;

/// What a load came to.
#[derive(Debug, Default)]
pub struct Loaded {
    /// PUTs that stored a file.
    pub stored: u64,
    /// All requests that were answered as they should be.
    pub good: u64,
    /// PUTs that were answered with a failure.
    pub failed: u64,
    /// Files that were not what was put last, lost connections, other responses: each as a
    /// sentence.
    pub wrong: Vec<String>,
    /// How long PUTs took.
    pub put_times: Vec<Duration>,
    /// How long GETs took.
    pub get_times: Vec<Duration>,
}

/// Clients at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Loaded>>,
}

impl Load {
    /// Starts clients that put bodies of this size under `/NAME-CLIENT-…`, and get each back that
    /// often and compare.
    pub fn start(socket: &Path, name: &str, clients: usize, body: usize, gets: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let run = |number: usize| {
            let (stop, socket, name) = (stop.clone(), socket.to_owned(), format!("{name}-{number}"));
            std::thread::spawn(move || run(&socket, &name, body, gets, &stop))
        };
        let clients = (0..clients).map(run).collect();
        Load { stop, clients }
    }

    /// Stops them, and sums up.
    pub fn stop(self) -> Loaded {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Loaded::default();
        for client in self.clients {
            let one = client.join().unwrap_or_default();
            all.stored += one.stored;
            all.failed += one.failed;
            all.wrong.extend(one.wrong);
            all.good += one.good;
            all.put_times.extend(one.put_times);
            all.get_times.extend(one.get_times);
        }
        all
    }
}

fn run(socket: &Path, name: &str, body: usize, gets: usize, stop: &AtomicBool) -> Loaded {
    let mut done = Loaded::default();
    let mut client = match Client::connect(socket) {
        Ok(client) => client,
        Err(error) => {
            done.wrong.push(format!("{name}: {error}"));
            return done;
        }
    };
    let mut bytes = vec![b'.'; body.max(24)];
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let path = format!("/{name}-{}", round % 4);
        let text = format!("{name} {round:012}\n");
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let began = Instant::now();
        match client.put(&path, &bytes) {
            Ok(response) if response.status == 201 || response.status == 204 => done.stored += 1,
            Ok(response) if response.status == 500 || response.status == 503 => {
                done.failed += 1;
                // nginx closes the connection after a failure of its own.
                match Client::connect(socket) {
                    Ok(next) => client = next,
                    Err(error) => done.wrong.push(format!("{name}: {error}")),
                }
                continue;
            }
            other => {
                done.wrong.push(format!("PUT {path}: {other:?}"));
                break;
            }
        }
        done.good += 1;
        done.put_times.push(began.elapsed());
        for _ in 0..gets {
            if stop.load(Ordering::Relaxed) {
                return done;
            }
            let began = Instant::now();
            match client.request("GET", &path, &[], b"") {
                Ok(response) if response.status == 200 && response.body == bytes => done.good += 1,
                other => {
                    done.wrong.push(format!("GET {path}: {:?}", other.map(|response| response.status)));
                    return done;
                }
            }
            done.get_times.push(began.elapsed());
        }
    }
    done
}
