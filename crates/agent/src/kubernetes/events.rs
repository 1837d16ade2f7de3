//! Events of Kubernetes about pods: what `kubectl describe pod` and `kubectl get events` show.
//!
//! Promises: handing one over never waits; the queue is bounded, and what does not fit, is refused
//! or is older than ten minutes is lost and counted; a request that may be made again is, after 1 s
//! to 60 s, twice as long each time. An Event is about a pod of the list alone, in its namespace.

use crate::journal::Kind;
use crate::kubernetes::Kubernetes;
use crate::kubernetes::api::Api;
use crate::kubernetes::pods::Pod;
use crate::plain;
use orbit_console::time::rfc3339;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

/// Events that wait.
const MAX_WAITING: usize = 256;
/// Bytes of an Event's sentence that the API server takes.
const MAX_NOTE_BYTES: usize = 1024;
/// For a request and its answer.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Bytes of an answer: the Event, as it was stored.
const MAX_ANSWER_BYTES: usize = 64 << 10;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
const MAX_AGE: Duration = Duration::from_secs(600);
/// For what waits when the agent ends.
const END_TIME: Duration = Duration::from_secs(2);

/// An Event in its wire form.
#[derive(Clone, Debug)]
pub struct Event {
    path: String,
    body: String,
    made: Instant,
}

impl Event {
    /// What is said about a container of a pod; `None` for what is no matter of the pod.
    pub fn new(
        node: &str,
        pod: &Pod,
        container: Option<&str>,
        kind: Kind,
        text: &str,
        at: SystemTime,
    ) -> Option<Event> {
        let (reason, action, severity) = match kind {
            Kind::Hang => ("Hang", "Watch", "Warning"),
            Kind::Recovered => ("HangOver", "Watch", "Normal"),
            Kind::Action => ("HangAction", "Act", "Warning"),
            Kind::Suppressed => ("HangActionLeftOut", "Act", "Warning"),
            Kind::Configuration | Kind::Trouble => return None,
        };
        let mut regarding =
            json!({ "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid });
        if let Some(container) = container {
            regarding["fieldPath"] = format!("spec.containers{{{container}}}").into();
        }
        let body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": { "generateName": format!("{}.", pod.name), "namespace": pod.namespace },
            "eventTime": micros(at), "type": severity, "reason": reason, "action": action,
            "reportingController": "orbit-agent", "reportingInstance": node,
            "note": cut(text), "regarding": regarding,
        });
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", pod.namespace);
        Some(Event { path, body: body.to_string(), made: Instant::now() })
    }
}

/// A time as the API's `MicroTime`: six digits of a second.
fn micros(at: SystemTime) -> String {
    let text = rfc3339(at);
    let (seconds, _) = text.split_once(['.', 'Z']).unwrap_or((&text, ""));
    let of_second = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_micros();
    format!("{seconds}.{of_second:06}Z")
}

/// A sentence that fits.
fn cut(text: &str) -> String {
    if text.len() <= MAX_NOTE_BYTES {
        return text.to_owned();
    }
    let mut end = MAX_NOTE_BYTES - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// See the module's head.
#[derive(Debug)]
pub struct Events {
    to: Option<SyncSender<Event>>,
    over: Receiver<()>,
    ends: Arc<AtomicBool>,
    node: String,
}

impl Events {
    /// Starts the thread. `failed` counts what is lost; `say` gets the first failure in a row, and
    /// that it is over.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start(
        of: &Kubernetes,
        failed: impl Fn() + Send + 'static,
        say: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Events> {
        let (to, from) = sync_channel::<Event>(MAX_WAITING);
        let (ended, over) = sync_channel(1);
        let ends = Arc::new(AtomicBool::new(false));
        let mut sender = Sender { api: Api::new(of), is_troubled: false, ends: ends.clone() };
        plain::spawn("orbit-events", move || {
            for event in from {
                if !sender.deliver(&event, &say) {
                    failed();
                }
            }
            // Nobody need wait for it.
            let _ = ended.send(());
        })?;
        Ok(Events { to: Some(to), over, ends, node: of.node.clone() })
    }

    /// The node's name, as Events have it.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Hands one over. False: the queue is full, and it is lost.
    pub fn push(&self, event: Event) -> bool {
        self.to.as_ref().is_some_and(|to| to.try_send(event).is_ok())
    }

    /// Sends what waits, once each, within two seconds.
    pub fn end(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.to.take());
        // What could not be sent by then is lost with the agent.
        let _ = self.over.recv_timeout(END_TIME);
    }
}

struct Sender {
    api: Api,
    is_troubled: bool,
    /// The agent ends: nothing is tried again.
    ends: Arc<AtomicBool>,
}

impl Sender {
    /// Posts an Event until it is taken or refused. False: it is lost.
    fn deliver(&mut self, event: &Event, say: &impl Fn(&str)) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            let until = Instant::now() + REQUEST_TIME;
            let (why, asked) = match self.api.post(&event.path, event.body.as_bytes(), MAX_ANSWER_BYTES, until) {
                Ok(answer) if (200..300).contains(&answer.status) => {
                    if std::mem::take(&mut self.is_troubled) {
                        say("Events to Kubernetes: accepted again");
                    }
                    return true;
                }
                Ok(answer) => {
                    let is_retried = answer.status == 429 || answer.status >= 500;
                    let why = format!("status {} of the API server at {}", answer.status, self.api.server());
                    (why, is_retried.then_some(answer.retry_after.unwrap_or_default()))
                }
                Err(e) => (format!("no answer of the API server at {}: {e}", self.api.server()), Some(Duration::ZERO)),
            };
            if !std::mem::replace(&mut self.is_troubled, true) {
                say(&format!("Events to Kubernetes: {why}"));
            }
            let Some(asked) = asked else { return false };
            let until = Instant::now() + pause.max(asked).min(MAX_PAUSE);
            while Instant::now() < until {
                if self.ends.load(Ordering::Relaxed) || event.made.elapsed() > MAX_AGE {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn an_event_names_pod_container_and_what_was_done() {
        let pod = Pod { name: "cart-1".into(), namespace: "shop".into(), uid: "u1".into(), ..Pod::default() };
        let at = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 42_000);
        let event = |kind, text: &str| Event::new("n1", &pod, Some("app"), kind, text, at);
        let hang = event(Kind::Hang, "it hangs").expect("a matter of the pod");
        assert_eq!(hang.path, "/apis/events.k8s.io/v1/namespaces/shop/events");
        let body: Value = serde_json::from_str(&hang.body).expect("JSON");
        assert_eq!(body["eventTime"], "2023-11-14T22:13:20.000042Z");
        assert_eq!(
            (&body["type"], &body["reason"], &body["note"]),
            (&"Warning".into(), &"Hang".into(), &"it hangs".into())
        );
        assert_eq!((&body["reportingInstance"], &body["metadata"]["namespace"]), (&"n1".into(), &"shop".into()));
        let regarding = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "cart-1", "uid": "u1",
                               "fieldPath": "spec.containers{app}"});
        assert_eq!(body["regarding"], regarding);
        assert!(event(Kind::Configuration, "x").is_none() && event(Kind::Trouble, "x").is_none());
        let long = event(Kind::Recovered, &"é".repeat(2000)).expect("a matter of the pod");
        let body: Value = serde_json::from_str(&long.body).expect("JSON");
        let note = body["note"].as_str().expect("a text");
        assert!(note.len() <= 1024 && note.len() > 1000 && note.ends_with('…'), "{}", note.len());
    }
}
