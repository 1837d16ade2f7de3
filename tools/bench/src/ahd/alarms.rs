//! Healthy programs must raise nothing: servers under changing load with small and large files, and
//! stress-ng.

use super::Lines;
use super::guarded::{Guarded, Reported};
use super::scratch::{self, Scratch};
use super::{servers, talk};
use crate::Progress;
use crate::reach::Reach;
use crate::stats::Shuffle;
use orbit_console::out::Failure;
use serde::Serialize;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a file, or of a value in Redis.
const SIZES: [usize; 7] = [1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 32 << 20, 100 << 20];
/// Bytes that a round moves at most, but for one request.
const ROUND: usize = 200 << 20;
/// Requests that a round makes at most.
const REQUESTS: usize = 400;
/// Clients at a time, at most.
const CLIENTS: usize = 32;
/// Longest pause between two rounds, milliseconds.
const PAUSE_MS: usize = 150;
/// How long one set of stressors runs.
const SLOT: Duration = Duration::from_secs(30);
/// A server that says nothing for so long has failed.
const ANSWER: Duration = Duration::from_secs(120);

/// Sets of stressors, one after the other.
const STRESSORS: [&str; 16] = [
    "--cpu 2",
    "--futex 2 --mutex 2",
    "--pipe 2 --fifo 2",
    "--sock 2 --sock-domain unix",
    "--poll 2 --eventfd 2",
    "--sem 2 --sem-sysv 2",
    "--switch 2 --yield 2",
    "--fork 2 --vfork 1",
    "--pthread 2 --clone 1",
    "--vm 2 --vm-bytes 64m",
    "--matrix 1 --qsort 1 --hsearch 1",
    "--malloc 2 --malloc-bytes 64m",
    "--timer 1 --timerfd 1 --nanosleep 2",
    "--sigq 2 --sigpending 1 --sigsuspend 1",
    "--msg 2 --mq 2",
    "--hdd 1 --hdd-bytes 64m --io 1",
];

/// What was watched, for how long, and what was reported of it.
#[derive(Debug, Serialize)]
pub struct Row {
    pub what: String,
    pub rounds: usize,
    pub requests: usize,
    pub bytes: u64,
    pub seconds: f64,
    pub false_alarms: usize,
}

/// Request rounds against a Redis and an nginx in turn.
pub fn rounds(rounds: usize, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let dir = scratch.path("alarms");
    let www = dir.join("www");
    std::fs::create_dir_all(&www)?;
    let mut watched = Vec::new();
    if scratch::has("redis-server") {
        let socket = servers::redis_socket(&dir);
        let guarded = Guarded::start(&servers::redis(&dir, &["--appendonly", "no"]), &[], None)?;
        servers::wait_ready(&socket)?;
        for size in SIZES {
            let mut request =
                format!("*3\r\n$3\r\nSET\r\n${}\r\n{size}\r\n${size}\r\n", size.to_string().len()).into_bytes();
            request.resize(request.len() + size, b'x');
            request.extend(b"\r\n");
            request_of(&socket, &request, b"+OK\r\n".len())?;
        }
        let get = |size: usize| format!("*2\r\n$3\r\nGET\r\n${}\r\n{size}\r\n", size.to_string().len());
        let answer = |size: usize| format!("${size}\r\n").len() + size + 2;
        watched.push(Server::new("redis", guarded, socket, get, answer));
    }
    if scratch::has("nginx") {
        let socket = servers::nginx_socket(&dir);
        for size in SIZES {
            std::fs::write(www.join(size.to_string()), vec![b'x'; size])?;
        }
        let guarded = Guarded::start(&servers::nginx(&dir, &www, None)?, &[], None)?;
        servers::wait_ready(&socket)?;
        let get = |size: usize| format!("GET /{size} HTTP/1.1\r\nHost: bench\r\n\r\n");
        watched.push(Server::new("nginx", guarded, socket, get, |_| 0));
    }
    if watched.is_empty() {
        lines.note("alarms: neither redis-server nor nginx is installed".to_owned());
        return Ok(());
    }
    let mut shuffle = Shuffle::new(orbit_rmk::now());
    let progress = Progress::new(rounds);
    let count = watched.len();
    for nth in 0..rounds {
        if scratch::go_on().is_err() {
            lines.note(format!("alarms: interrupted after {nth} rounds of {rounds}"));
            break;
        }
        let server = &mut watched[nth % count];
        progress.at(nth, &format!("alarms: {}", server.row.what));
        match server.round(&mut shuffle) {
            // The signal that asked for the end may have ended the server too.
            Err(_) if scratch::go_on().is_err() => continue,
            done => done?,
        }
        for reported in server.guarded.watch(Duration::from_millis(shuffle.below(PAUSE_MS) as u64))? {
            server.row.false_alarms += 1;
            lines.note_at_once(alarm(&format!("{} in round {nth}", server.row.what), &reported));
        }
    }
    progress.finish();
    let (mut reported, mut done) = (0, 0);
    for mut server in watched {
        // What the last round may still lead to.
        for late in server.guarded.watch(Duration::from_secs(1))? {
            server.row.false_alarms += 1;
            lines.note_at_once(alarm(&server.row.what, &late));
        }
        reported += server.row.false_alarms;
        done += server.row.rounds;
        server.row.seconds = server.begun.elapsed().as_secs_f64().round();
        lines.alarms(server.row);
    }
    lines.reach([Reach::at_most(format!("false alarms in {done} request rounds"), reported as f64, 0.0, "reports")]);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn alarm(what: &str, reported: &Reported) -> String {
    format!("FALSE ALARM: {what}: {}", reported.report())
}

/// A server under guard with its requests.
struct Server {
    guarded: Guarded,
    socket: PathBuf,
    request: fn(usize) -> String,
    /// Length of the answer; 0: as its header says.
    answer: fn(usize) -> usize,
    begun: Instant,
    row: Row,
}

impl Server {
    fn new(
        name: &str,
        guarded: Guarded,
        socket: PathBuf,
        request: fn(usize) -> String,
        answer: fn(usize) -> usize,
    ) -> Server {
        let row = Row { what: name.to_owned(), rounds: 0, requests: 0, bytes: 0, seconds: 0.0, false_alarms: 0 };
        Server { guarded, socket, request, answer, begun: Instant::now(), row }
    }

    /// One round: some clients at a time, each with some requests for things of one size.
    fn round(&mut self, shuffle: &mut Shuffle) -> Result<(), Failure> {
        let size = SIZES[shuffle.below(SIZES.len())];
        let most = (ROUND / size).clamp(1, REQUESTS);
        let clients = (1 + shuffle.below(CLIENTS)).min(most);
        let each = 1 + shuffle.below(most / clients);
        let (request, answer) = ((self.request)(size), (self.answer)(size));
        let socket = &self.socket;
        let done: io::Result<Vec<u64>> = std::thread::scope(|s| {
            let all: Vec<_> =
                (0..clients).map(|_| s.spawn(|| client(socket, request.as_bytes(), answer, each))).collect();
            all.into_iter().map(|c| c.join().unwrap_or_else(|_| Err(io::Error::other("a client failed")))).collect()
        });
        let bytes: u64 =
            done.map_err(|e| Failure::text(format!("{} does not answer: {e}", self.row.what)))?.iter().sum();
        self.row.rounds += 1;
        self.row.requests += clients * each;
        self.row.bytes += bytes;
        Ok(())
    }
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let connection = UnixStream::connect(socket)?;
    connection.set_read_timeout(Some(ANSWER))?;
    connection.set_write_timeout(Some(ANSWER))?;
    Ok(connection)
}

fn request_of(socket: &Path, request: &[u8], answer: usize) -> io::Result<u64> {
    client(socket, request, answer, 1)
}

/// Makes the same request some times on one connection; answers the bytes that came.
fn client(socket: &Path, request: &[u8], answer: usize, times: usize) -> io::Result<u64> {
    let mut connection = connect(socket)?;
    let mut buffer = vec![0; 1 << 16];
    let mut all = 0;
    for _ in 0..times {
        connection.write_all(request)?;
        let (mut expected, mut got, mut head) = (answer, 0, Vec::new());
        while expected == 0 || got < expected {
            let n = connection.read(&mut buffer)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            got += n;
            if expected == 0 {
                head.extend(&buffer[..n]);
                expected = http_length(&head)?.unwrap_or(0);
            }
        }
        all += got as u64;
    }
    Ok(all)
}

/// Length of an HTTP answer with its header, once that is whole.
fn http_length(head: &[u8]) -> io::Result<Option<usize>> {
    let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&head[..end]);
    let wrong = || io::Error::other(format!("an answer without a length: {text}"));
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: ")).ok_or_else(wrong)?;
    Ok(Some(end + 4 + length.parse::<usize>().map_err(|_| wrong())?))
}

/// Guarded stress-ng, with a guarded Redis beside it, for so long.
pub fn stress(span: Duration, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    if !scratch::has("stress-ng") {
        lines.note("alarms: stress-ng is not installed".to_owned());
        return Ok(());
    }
    let dir = scratch.path("stress");
    std::fs::create_dir_all(&dir)?;
    let row =
        |what: &str| Row { what: what.to_owned(), rounds: 0, requests: 0, bytes: 0, seconds: 0.0, false_alarms: 0 };
    let (mut rows, mut begun) = ([row("stress-ng"), row("redis beside stress-ng")], Instant::now());
    let mut beside = None;
    let stop = AtomicBool::new(false);
    if scratch::has("redis-server") {
        let guarded = Guarded::start(&servers::redis(&dir, &["--appendonly", "no"]), &[], None)?;
        servers::wait_ready(&servers::redis_socket(&dir))?;
        beside = Some(guarded);
        begun = Instant::now();
    }
    let slots = (span.as_secs_f64() / SLOT.as_secs_f64()).ceil().max(1.0) as usize;
    let progress = Progress::new(slots);
    let mut left_out = 0;
    let ended = std::thread::scope(|s| {
        if beside.is_some() {
            s.spawn(|| talk::to_redis(&servers::redis_socket(&dir), &stop));
        }
        // Some sets end before their time: others fill it up.
        let mut sets = (0..2 * slots).take_while(|_| begun.elapsed() < span);
        let ended: Result<(), Failure> = sets.try_for_each(|nth| {
            let stressors = STRESSORS[nth % STRESSORS.len()];
            progress.at(nth.min(slots - 1), &format!("alarms: stress-ng {stressors}"));
            let seconds = SLOT.min(span.saturating_sub(begun.elapsed())).as_secs_f64().ceil().max(1.0);
            let reported = match one_slot(stressors, seconds as u64, &dir, beside.as_mut()) {
                // One set of many: the others suffice without it.
                Err(e) if scratch::go_on().is_ok() => {
                    left_out += 1;
                    lines.note(format!("alarms: {stressors} left out: {e}"));
                    return if left_out * 10 > slots { Err(e) } else { Ok(()) };
                }
                reported => reported?,
            };
            for (row, reported) in rows.iter_mut().zip(reported) {
                row.rounds += 1;
                row.false_alarms += reported.len();
                let what = format!("{} with {stressors}", row.what);
                reported.iter().for_each(|reported| lines.note_at_once(alarm(&what, reported)));
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        ended
    });
    progress.finish();
    let with_redis = beside.is_some();
    drop(beside);
    std::fs::remove_dir_all(&dir)?;
    if scratch::go_on().is_err() {
        lines.note("alarms: stress-ng was interrupted".to_owned());
    }
    let reported: usize = rows.iter().map(|row| row.false_alarms).sum();
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    lines.reach([Reach::at_most(
        format!("false alarms in {minutes:.1} minutes of stress-ng"),
        reported as f64,
        0.0,
        "reports",
    )]);
    for mut row in rows.into_iter().take(1 + usize::from(with_redis)) {
        row.seconds = begun.elapsed().as_secs_f64().round();
        lines.alarms(row);
    }
    if scratch::go_on().is_err() { Ok(()) } else { ended }
}

/// Runs one set of stressors to its end; answers what was reported of it, and of the server beside
/// it.
fn one_slot(
    stressors: &str,
    seconds: u64,
    dir: &Path,
    beside: Option<&mut Guarded>,
) -> Result<[Vec<Reported>; 2], Failure> {
    let (seconds, dir) = (format!("{seconds}s"), dir.to_string_lossy());
    let mut program = vec!["nice", "-n", "10", "stress-ng", "--temp-path", &*dir, "--timeout", &*seconds, "--oomable"];
    program.extend(stressors.split(' '));
    let mut guarded = Guarded::start(&program, &[], None)?;
    let mut reported = [Vec::new(), Vec::new()];
    // The guard ends with its program.
    while let Ok(event) = guarded.next(Duration::from_millis(200)) {
        scratch::go_on()?;
        reported[0].extend(event.filter(Reported::is_hang));
    }
    if let Some(beside) = beside {
        reported[1] = beside.watch(Duration::ZERO)?;
    }
    Ok(reported)
}
