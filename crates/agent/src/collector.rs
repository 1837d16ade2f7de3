//! What goes to a collector of OpenTelemetry: a queue, and the thread that empties it.
//!
//! Promises: handing a record over never waits for the network; the queue is bounded in records
//! and bytes, and what does not fit is lost and counted; records wait through a collector's
//! absence, figures do not, for the next ones have all; a request that fails is counted, and
//! delays the next by 1 s to [`MAX_PAUSE`], twice as long each time. A record that the collector
//! rejects is not sent again. The thread has no capabilities.

use crate::export::Otlp;
use crate::metrics::Family;
use crate::otlp::{self, Record};
use crate::plain;
use crate::request::post;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Records that wait.
const MAX_RECORDS: usize = 2048;
/// Their bytes together.
const MAX_BYTES: usize = 4 << 20;
/// Records of a request.
const BATCH_RECORDS: usize = 512;
/// How long a record waits for others.
const BATCH_TIME: Duration = Duration::from_millis(200);
/// For a request and its answer.
const REQUEST_TIME: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// For what waits when the agent ends.
const END_TIME: Duration = Duration::from_secs(2);
/// Answers after which the same may be sent again, by the protocol.
const RETRIED: [u16; 4] = [429, 502, 503, 504];

/// What the thread takes from the agent.
pub struct Agent {
    /// The figures as they are now.
    pub figures: Box<dyn Fn() -> Vec<Family> + Send>,
    /// Counts a failed request.
    pub failed: Box<dyn Fn() + Send>,
    /// Says the first failure in a row, and when it is over.
    pub say: Box<dyn Fn(&str) + Send>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Collector {
    shared: Arc<Shared>,
    host: String,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    records: VecDeque<Record>,
    bytes: usize,
    /// When the oldest came.
    since: Option<Instant>,
    /// Until when the thread may continue, once the agent ends.
    ends: Option<Instant>,
    is_over: bool,
}

impl Collector {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start(to: &Otlp, agent: Agent) -> io::Result<Collector> {
        let shared = Arc::new(Shared::default());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let mut sender = Sender {
            to: to.endpoint,
            interval: to.interval,
            host: host.clone(),
            agent,
            batch: Vec::new(),
            started: SystemTime::now(),
            figures_at: Instant::now(),
            pause: None,
            next_pause: FIRST_PAUSE,
            troubled: BTreeSet::new(),
        };
        let of_thread = shared.clone();
        plain::spawn("orbit-otlp", move || {
            while sender.work(&of_thread) {}
            of_thread.lock().is_over = true;
            of_thread.changed.notify_all();
        })?;
        Ok(Collector { shared, host })
    }

    /// The machine's name, as records have it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Hands a record over. False: the queue is full, and the record is lost.
    pub fn push(&self, record: Record) -> bool {
        let mut queue = self.shared.lock();
        let bytes = queue.bytes + record.bytes();
        if queue.records.len() >= MAX_RECORDS || bytes > MAX_BYTES {
            return false;
        }
        queue.bytes = bytes;
        queue.since.get_or_insert_with(Instant::now);
        queue.records.push_back(record);
        self.shared.changed.notify_all();
        true
    }

    /// Sends what waits, and the last figures, within two seconds.
    pub fn end(&self) {
        let until = Instant::now() + END_TIME;
        let mut queue = self.shared.lock();
        queue.ends = Some(until);
        self.shared.changed.notify_all();
        while !queue.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.shared.wait(queue, left);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, time: Duration) -> MutexGuard<'a, Queue> {
        self.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Sender {
    to: SocketAddr,
    interval: Duration,
    host: String,
    agent: Agent,
    /// Taken from the queue, and not accepted yet.
    batch: Vec<Record>,
    started: SystemTime,
    /// When figures are due.
    figures_at: Instant,
    /// No request before, after one that failed.
    pause: Option<Instant>,
    next_pause: Duration,
    /// Paths of which the last request failed.
    troubled: BTreeSet<&'static str>,
}

impl Sender {
    /// Waits until something is due, and sends it. False: the agent ends, and nothing is left or
    /// the collector takes nothing.
    fn work(&mut self, shared: &Shared) -> bool {
        let ends = self.wait(shared);
        let until = |most: Instant| ends.map_or(most, |end| end.min(most));
        self.pause = None;
        if !self.batch.is_empty() {
            let body = otlp::logs(&self.batch);
            if self.send(otlp::LOGS, &body, until(Instant::now() + REQUEST_TIME)) {
                self.batch.clear();
            }
        }
        // After a failure they wait for the next attempt, as all does.
        if self.pause.is_none() && (ends.is_some() || Instant::now() >= self.figures_at) {
            self.figures_at = Instant::now() + self.interval;
            let body = otlp::metrics(&self.host, &(self.agent.figures)(), self.started, SystemTime::now());
            self.send(otlp::METRICS, &body, until(Instant::now() + REQUEST_TIME));
        }
        ends.is_none() || (self.pause.is_none() && !shared.lock().records.is_empty())
    }

    /// Waits until records or figures are due, and takes the records. Answers when to end, if the
    /// agent does.
    fn wait(&mut self, shared: &Shared) -> Option<Instant> {
        let mut queue = shared.lock();
        while queue.ends.is_none() {
            let now = Instant::now();
            let records_at =
                if self.batch.is_empty() { queue.since.map(|since| since + BATCH_TIME) } else { Some(now) };
            let due = records_at.map_or(self.figures_at, |at| at.min(self.figures_at));
            let left = self.pause.map_or(due, |pause| pause.max(due)).saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            queue = shared.wait(queue, left);
        }
        if self.batch.is_empty() {
            let count = queue.records.len().min(BATCH_RECORDS);
            self.batch.extend(queue.records.drain(..count));
            queue.bytes -= self.batch.iter().map(Record::bytes).sum::<usize>();
            queue.since = queue.since.filter(|_| !queue.records.is_empty());
        }
        queue.ends
    }

    /// Posts a body. True: it needs no further attempt.
    fn send(&mut self, path: &'static str, body: &str, until: Instant) -> bool {
        let (why, again) = match post(self.to, path, body.as_bytes(), until) {
            Ok(answer) if (200..300).contains(&answer.status) => match otlp::rejected(&answer.body) {
                None => {
                    self.next_pause = FIRST_PAUSE;
                    if self.troubled.remove(path) {
                        self.say(path, "accepted again");
                    }
                    return true;
                }
                Some(why) => (why, None),
            },
            Ok(answer) => {
                let is_retried = RETRIED.contains(&answer.status);
                (format!("status {}", answer.status), is_retried.then_some(answer.retry_after.unwrap_or_default()))
            }
            Err(e) => (e.to_string(), Some(Duration::ZERO)),
        };
        (self.agent.failed)();
        if self.troubled.insert(path) {
            self.say(path, &why);
        }
        if let Some(asked) = again {
            let pause = self.next_pause.mul_f64(0.75 + jitter() / 2.0).max(asked).min(MAX_PAUSE);
            self.pause = Some(Instant::now() + pause);
            self.next_pause = (self.next_pause * 2).min(MAX_PAUSE);
        }
        again.is_none()
    }

    fn say(&self, path: &str, what: &str) {
        (self.agent.say)(&format!("collector at {}, {path}: {what}", self.to));
    }
}

/// From 0 to 1: that the agents of many machines do not come back at the same time.
fn jitter() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    f64::from(now.subsec_nanos() % 1000) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Kind;
    use serde_json::Value;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    const PATIENCE: Duration = Duration::from_secs(60);
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

    /// A collector that answers the n-th request for records so, and accepts all figures. An empty
    /// answer closes the connection. Gives the bodies as they came.
    fn server(answer: impl Fn(usize) -> &'static str + Send + 'static) -> (SocketAddr, Receiver<(String, Value)>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let at = listener.local_addr().expect("an address");
        let (to, from) = channel();
        std::thread::spawn(move || {
            let mut asked = 0;
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let (mut got, mut room) = (Vec::new(), [0; 4096]);
                let body = loop {
                    let n = stream.read(&mut room).expect("a request");
                    got.extend_from_slice(&room[..n]);
                    let text = String::from_utf8_lossy(&got).into_owned();
                    if let Some((head, body)) = text.split_once("\r\n\r\n") {
                        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                        if length.expect("a length").parse::<usize>().expect("a number") == body.len() {
                            break body.to_owned();
                        }
                    }
                };
                let path = String::from_utf8_lossy(&got).split(' ').nth(1).expect("a path").to_owned();
                let mut text = OK;
                if path == otlp::LOGS {
                    (text, asked) = (answer(asked), asked + 1);
                }
                let _ = stream.write_all(text.as_bytes());
                if to.send((path, serde_json::from_str(&body).expect("JSON"))).is_err() {
                    return;
                }
            }
        });
        (at, from)
    }

    fn start(endpoint: SocketAddr) -> (Collector, Arc<AtomicUsize>, Receiver<String>) {
        let failures = Arc::new(AtomicUsize::new(0));
        let counted = failures.clone();
        let (to, said) = channel();
        let agent = Agent {
            figures: Box::new(Vec::new),
            failed: Box::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
            say: Box::new(move |text| drop(to.send(text.to_owned()))),
        };
        let otlp = Otlp { endpoint, interval: Duration::from_secs(3600) };
        (Collector::start(&otlp, agent).expect("a thread"), failures, said)
    }

    fn record(text: &str) -> Record {
        Record::new("n1", None, Kind::Hang, text, &[], SystemTime::now())
    }

    /// Sentences of the next request for records.
    fn next(from: &Receiver<(String, Value)>) -> Vec<String> {
        loop {
            let (path, body) = from.recv_timeout(PATIENCE).expect("a request");
            if path == otlp::LOGS {
                let records = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().expect("a list").clone();
                let text = |record: &Value| record["body"]["stringValue"].as_str().expect("a text").to_owned();
                return records.iter().map(text).collect();
            }
        }
    }

    #[test]
    fn what_may_be_sent_again_is_and_what_is_rejected_is_not() {
        let (at, requests) = server(|n| match n {
            0 => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            1 => "",
            3 => "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            5 => "HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n{\"partialSuccess\":{\"rejectedLogRecords\":\"1\"}}",
            _ => OK,
        });
        let (collector, failures, said) = start(at);
        assert!(collector.push(record("1")) && collector.push(record("2")));
        for _ in 0..3 {
            assert_eq!(next(&requests), ["1", "2"], "together, and again until they are accepted");
        }
        for text in ["3", "4", "5", "6"] {
            assert!(collector.push(record(text)));
            assert_eq!(next(&requests), [text]);
        }
        collector.end();
        assert_eq!(failures.load(Ordering::Relaxed), 4);
        let said: Vec<String> = said.try_iter().collect();
        let ends = ["status 503", "accepted again", "status 400", "accepted again", "1 rejected", "accepted again"];
        assert_eq!(said.len(), ends.len(), "{said:?}");
        assert!(said.iter().zip(ends).all(|(text, part)| text.contains(part)), "{said:?}");
    }

    #[test]
    fn figures_come_at_the_start_and_at_the_end_with_what_waits() {
        let (at, requests) = server(|_| OK);
        let (collector, failures, _said) = start(at);
        assert_eq!(requests.recv_timeout(PATIENCE).expect("a request").0, otlp::METRICS);
        collector.push(record("last"));
        collector.end();
        let paths: Vec<String> = requests.try_iter().map(|(path, _)| path).collect();
        assert_eq!((paths, failures.load(Ordering::Relaxed)), (vec![otlp::LOGS.into(), otlp::METRICS.into()], 0));
    }

    #[test]
    fn a_server_that_never_answers_delays_nobody_and_the_queue_is_bounded() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let (collector, failures, _said) = start(silent.local_addr().expect("an address"));
        let start = Instant::now();
        let taken = (0..2 * MAX_RECORDS).filter(|_| collector.push(record("x"))).count();
        assert!(start.elapsed() < REQUEST_TIME, "handing over waits: {:?}", start.elapsed());
        assert!((MAX_RECORDS..=MAX_RECORDS + BATCH_RECORDS).contains(&taken), "{taken}");
        let long = "x".repeat(MAX_BYTES);
        assert!(record(&long).bytes() < MAX_BYTES / 100, "a sentence is cut");
        while failures.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < PATIENCE, "not counted");
            std::thread::sleep(Duration::from_millis(10));
        }
        let end = Instant::now();
        collector.end();
        assert!(end.elapsed() < END_TIME + Duration::from_secs(5), "the end waits: {:?}", end.elapsed());
    }
}
