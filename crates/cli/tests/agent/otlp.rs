//! Export by OTLP to a collector of the test's own: the form of what comes, and what a collector
//! that refuses or is silent does to the agent.

use crate::guard_common::{Dir, PATIENCE, skipped, until};
use crate::running::{Agent, program, start};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A request as it came.
struct Request {
    path: String,
    head: String,
    body: Value,
}

/// A collector that accepts all. Gives what it got.
fn collector() -> (SocketAddr, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let at = listener.local_addr().expect("an address");
    let (to, from) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            // One that left in the middle is nothing to a collector.
            let Some(request) = read(&mut stream) else { continue };
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
            if to.send(request).is_err() {
                return;
            }
        }
    });
    (at, from)
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let (mut got, mut room) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut room).ok().filter(|n| *n > 0)?;
        got.extend_from_slice(&room[..n]);
        let Some(end) = got.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(got[..end].to_vec()).expect("text");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
        if got.len() == end + 4 + length.parse::<usize>().expect("a number") {
            let path = head.split(' ').nth(1).expect("a path").to_owned();
            let body = serde_json::from_slice(&got[end + 4..]).unwrap_or_else(|e| panic!("{e}: {head}"));
            return Some(Request { path, head, body });
        }
    }
}

/// Fails where a value has no form that the JSON mapping of OTLP's messages gives a field of this
/// name: numbers of 64 bits are texts, enumerations numbers, names in lowerCamelCase.
fn judge(name: &str, value: &Value) {
    let is_number_text = |value: &Value| value.as_str().is_some_and(|text| text.parse::<u64>().is_ok());
    let is_sound = match name {
        "timeUnixNano" | "observedTimeUnixNano" | "startTimeUnixNano" | "intValue" | "asInt" | "count" => {
            is_number_text(value)
        }
        "bucketCounts" => value.as_array().is_some_and(|all| all.iter().all(is_number_text)),
        "explicitBounds" => value.as_array().is_some_and(|all| all.iter().all(Value::is_f64)),
        "severityNumber" | "aggregationTemporality" => value.as_u64().is_some_and(|number| (1..=24).contains(&number)),
        "isMonotonic" => value.is_boolean(),
        "asDouble" | "sum" if !value.is_object() => value.is_f64(),
        "key" | "name" | "version" | "stringValue" | "severityText" | "eventName" | "description" | "unit" => {
            value.is_string()
        }
        "resourceLogs" | "scopeLogs" | "logRecords" | "resourceMetrics" | "scopeMetrics" | "metrics" | "dataPoints"
        | "attributes" => value.is_array(),
        "" | "resource" | "scope" | "body" | "value" | "sum" | "gauge" | "histogram" => value.is_object(),
        _ => false,
    };
    assert!(is_sound, "{name}: {value}");
    match value {
        Value::Object(all) => all.iter().for_each(|(name, value)| judge(name, value)),
        Value::Array(all) => all.iter().filter(|each| each.is_object()).for_each(|each| judge("", each)),
        _ => {}
    }
}

/// An attribute's text, be it a number or not.
fn attribute<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    let all = of["attributes"].as_array()?;
    let value = &all.iter().find(|each| each["key"] == key)?["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str())
}

/// Watches programs of this name alone: the agents of other tests run at the same time.
fn config(at: SocketAddr, limits: &str, command: &str) -> String {
    format!(
        "{limits}[export.prometheus]\nlisten = \"127.0.0.1:0\"\n[export.otlp]\nendpoint = \"http://{at}\"\n\
         interval = \"1s\"\n[[policy]]\nname = \"p\"\nmatch = {{ command = {command:?} }}\n\
         watch = {{ on_hang = \"signal:SIGTERM\" }}\n"
    )
}

#[test]
fn hangs_actions_and_figures_come_in_the_form_of_the_protocol() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-otlp");
    let bin = program(&dir, "oa-otlp-form");
    let (at, requests) = collector();
    let agent = Agent::start(&dir, &config(at, "[limits]\nreports_per_hour = 1\n", "oa-otlp-form"));
    let first = start(&bin, "ring2", None);
    let (mut events, mut hangs, mut report) = (std::collections::BTreeSet::new(), 0, None);
    let mut second = None;
    let wanted = ["orbit.configuration", "orbit.hang", "orbit.action", "orbit.suppressed"];
    until("records and figures", || {
        let Request { path, head, body } = requests.recv_timeout(PATIENCE).expect("a request");
        for line in ["Content-Type: application/json", "Connection: close"] {
            assert!(head.lines().any(|own| own == line), "{line}: {head}");
        }
        judge("", &body);
        match path.as_str() {
            "/v1/logs" => {
                for group in body["resourceLogs"].as_array().expect("groups") {
                    assert!(attribute(&group["resource"], "host.name").is_some(), "{group}");
                    for record in group["scopeLogs"][0]["logRecords"].as_array().expect("records") {
                        let event = record["eventName"].as_str().expect("a name").to_owned();
                        if event == "orbit.hang" {
                            report = Some((group["resource"].clone(), record.clone()));
                        }
                        events.insert(event);
                    }
                }
            }
            "/v1/metrics" => {
                let text = body.to_string();
                assert!(!text.contains("process.pid") && !text.contains("thread.id"), "{text}");
                let all = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
                let of = all.iter().find(|metric| metric["name"] == "orbit.hangs").expect("hangs");
                let points = of["sum"]["dataPoints"].as_array().expect("points");
                hangs = points
                    .iter()
                    .map(|point| point["asInt"].as_str().expect("a text").parse::<u64>().expect("n"))
                    .sum();
            }
            other => panic!("{other}"),
        }
        // The second report of the service is one too many.
        if events.contains("orbit.action") && second.is_none() {
            second = Some(start(&bin, "ring2", None));
        }
        (hangs >= 2 && wanted.iter().all(|event| events.contains(*event))).then_some(())
    });
    let (resource, record) = report.expect("a report");
    assert!(attribute(&resource, "service.name").is_some_and(|name| !name.is_empty()), "{resource}");
    let pid = first.0.id().to_string();
    assert_eq!(attribute(&record, "process.pid"), Some(pid.as_str()));
    assert!(attribute(&record, "thread.id").is_some(), "{record}");
    assert_eq!([attribute(&record, "orbit.policy"), attribute(&record, "orbit.sure")], [Some("p"), Some("certain")]);
    let file = attribute(&record, "orbit.report").expect("a file");
    assert!(std::path::Path::new(file).exists(), "{file}");
    assert!(record["body"]["stringValue"].as_str().is_some_and(|text| text.contains("hangs (blocked, certain)")));
    assert_eq!(agent.figure("orbit_export_failures_total"), 0.0, "{}", agent.log());
}

#[test]
fn a_collector_that_refuses_or_is_silent_delays_no_report_and_is_counted() {
    if skipped() {
        return;
    }
    let silent = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let refusing = TcpListener::bind("127.0.0.1:0").expect("a socket").local_addr().expect("an address");
    for (name, at) in [("oa-silent", silent.local_addr().expect("an address")), ("oa-refusing", refusing)] {
        let dir = Dir::new(&format!("agent-otlp-{name}"));
        let bin = program(&dir, name);
        let agent = Agent::start(&dir, &config(at, "", name));
        let _child = start(&bin, "ring2", None);
        until("a report", || (!agent.reports().is_empty()).then_some(()));
        until("the action", || (agent.figure("orbit_actions_total{did=\"signal\"}") == 1.0).then_some(()));
        until("a failure to be counted", || {
            (agent.figure("orbit_export_failures_total{to=\"otlp\"}") > 0.0).then_some(())
        });
        assert!(agent.log().contains(&format!("collector at {at}")), "{}", agent.log());
        // Messages that waited for the collector, 5 s each, would take longer together.
        let begun = Instant::now();
        for n in 1..=20 {
            agent.hang_up();
            until("another reading", || (agent.log().matches("read again").count() == n).then_some(()));
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        assert!(agent.end().success());
    }
}
