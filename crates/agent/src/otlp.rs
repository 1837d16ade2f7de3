//! The wire form of OTLP: messages as log records, figures as metrics, in the JSON mapping of the
//! protocol's messages.
//!
//! Promises: pure functions; integers of 64 bits are texts, enumerations are numbers, as the
//! mapping has it; names of the semantic conventions where there is one (`service.name`, `k8s.*`,
//! `container.*`, `process.pid`, `thread.id`, `host.name`), else `orbit.*`. Processes and pods are
//! in records alone: of a metric the attributes are the labels of [`crate::metrics`].

use crate::journal::Kind;
use crate::metrics::{Family, Labels, Samples, unit};
use crate::policy::Subject;
use crate::selector::service;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where log records are posted.
pub const LOGS: &str = "/v1/logs";
/// Where metrics are posted.
pub const METRICS: &str = "/v1/metrics";
/// Bytes of a record's sentence; what is beyond is cut.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`: each export has all since the agent's start.
const CUMULATIVE: u32 = 2;

/// A log record in its wire form, with what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    resource: String,
    record: String,
}

impl Record {
    /// A message: what the journal gets, with fields of the journal's names. `of` is the process
    /// that it is about; `None`: the agent.
    pub fn new(
        host: &str,
        of: Option<&Subject>,
        kind: Kind,
        text: &str,
        fields: &[(&str, &str)],
        at: SystemTime,
    ) -> Record {
        let (event, severity, word) = match kind {
            Kind::Hang => ("orbit.hang", 17, "ERROR"),
            Kind::Recovered => ("orbit.recovered", 9, "INFO"),
            Kind::Action => ("orbit.action", 13, "WARN"),
            Kind::Suppressed => ("orbit.suppressed", 13, "WARN"),
            Kind::Configuration => ("orbit.configuration", 9, "INFO"),
            Kind::Trouble => ("orbit.trouble", 17, "ERROR"),
        };
        let attributes: Vec<Value> =
            fields.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| field(name, value)).collect();
        let time = nanos(at);
        let record = json!({
            "timeUnixNano": time, "observedTimeUnixNano": time,
            "severityNumber": severity, "severityText": word, "eventName": event,
            "body": { "stringValue": cut(text) }, "attributes": attributes,
        });
        let resource = of.map_or_else(|| agent(host), |subject| resource(host, subject));
        Record { resource: resource.to_string(), record: record.to_string() }
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.resource.len() + self.record.len()
    }
}

/// The body of a request for these records: those of the same resource together, in their order.
pub fn logs(records: &[Record]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for Record { resource, record } in records {
        match groups.iter_mut().find(|(of, _)| of == resource) {
            Some((_, all)) => all.push(record),
            None => groups.push((resource, vec![record])),
        }
    }
    let scope = scope();
    let groups: Vec<String> = groups
        .iter()
        .map(|(resource, all)| {
            let all = all.join(",");
            format!(r#"{{"resource":{resource},"scopeLogs":[{{"scope":{scope},"logRecords":[{all}]}}]}}"#)
        })
        .collect();
    format!(r#"{{"resourceLogs":[{}]}}"#, groups.join(","))
}

/// The body of a request for these figures, which have been counted since `start`.
pub fn metrics(host: &str, families: &[Family], start: SystemTime, now: SystemTime) -> String {
    let (start, now) = (nanos(start), nanos(now));
    let metrics: Vec<Value> = families.iter().map(|family| metric(family, &start, &now)).collect();
    let scopes = json!([{ "scope": scope(), "metrics": metrics }]);
    json!({ "resourceMetrics": [{ "resource": agent(host), "scopeMetrics": scopes }] }).to_string()
}

/// What was not accepted of a request that was, in a sentence, if anything.
pub fn rejected(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let partial = answer.get("partialSuccess")?;
    // A text by the mapping; servers that write a number are understood, too.
    let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let count = ["rejectedLogRecords", "rejectedDataPoints"].iter().find_map(|key| number(partial.get(key)?))?;
    let why = partial.get("errorMessage").and_then(Value::as_str).unwrap_or("without a reason");
    (count > 0).then(|| format!("{count} rejected: {why}"))
}

/// A family of the page. By the rules with which collectors make names of Prometheus from these,
/// it has the page's name there: `orbit_agent_cpu_seconds` is `orbit.agent_cpu` in `s`.
fn metric(Family { name, help, samples }: &Family, start: &str, now: &str) -> Value {
    let name = name.strip_prefix("orbit_").unwrap_or(name);
    let (name, unit) = match (name.strip_suffix("_seconds"), name.strip_suffix("_bytes")) {
        (Some(name), _) => (name, "s"),
        (_, Some(name)) => (name, "By"),
        _ => (name, ""),
    };
    let points = |samples: &[(Labels, f64)]| -> Vec<Value> {
        let point = |(labels, value): &(Labels, f64)| {
            let mut point =
                json!({ "attributes": attributes(labels), "startTimeUnixNano": start, "timeUnixNano": now });
            match unit {
                "s" => point["asDouble"] = json!(value),
                _ => point["asInt"] = json!((*value as u64).to_string()),
            }
            point
        };
        samples.iter().map(point).collect()
    };
    let (kind, data) = match samples {
        Samples::Counter(samples) => {
            ("sum", json!({ "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points(samples) }))
        }
        Samples::Gauge(samples) => ("gauge", json!({ "dataPoints": points(samples) })),
        Samples::Histogram(of) => {
            let (bounds, counts) = of.buckets();
            let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
            let (count, sum) = of.total();
            let point = json!({
                "attributes": [], "startTimeUnixNano": start, "timeUnixNano": now, "count": count.to_string(),
                "sum": sum, "bucketCounts": counts, "explicitBounds": bounds,
            });
            ("histogram", json!({ "aggregationTemporality": CUMULATIVE, "dataPoints": [point] }))
        }
    };
    json!({ "name": format!("orbit.{name}"), "description": help, "unit": unit, kind: data })
}

/// Labels that have a value.
fn attributes(labels: &Labels) -> Vec<Value> {
    let named = |key: &str| match key {
        "namespace" => "k8s.namespace.name".to_owned(),
        "container" => "k8s.container.name".to_owned(),
        key => format!("orbit.{key}"),
    };
    labels.iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| text(&named(key), value)).collect()
}

/// A field of the journal as an attribute.
fn field(name: &str, value: &str) -> Value {
    let number = |key: &str| match value.parse::<u64>() {
        Ok(number) => json!({ "key": key, "value": { "intValue": number.to_string() } }),
        Err(_) => text(key, value),
    };
    match name {
        "OBJECT_PID" => number("process.pid"),
        "ORBIT_TID" => number("thread.id"),
        _ => text(&name.to_ascii_lowercase().replacen('_', ".", 1), value),
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn scope() -> Value {
    json!({ "name": "orbit-agent", "version": env!("CARGO_PKG_VERSION") })
}

/// The agent as a resource.
fn agent(host: &str) -> Value {
    let version = text("service.version", env!("CARGO_PKG_VERSION"));
    json!({ "attributes": [text("service.name", "orbit-agent"), version, text("host.name", host)] })
}

/// The service of a process as a resource.
fn resource(host: &str, of: &Subject) -> Value {
    let id = &of.identity;
    let is_machine = matches!(id.runtime, Some("nspawn" | "lxc"));
    let (number, machine) = if is_machine { (&None, &id.container) } else { (&id.container, &None) };
    let names = of.names.as_ref();
    let own_unit = id.unit.as_deref().filter(|_| id.container.is_none());
    // The same for all of a service's processes, wherever they run.
    let name = match (names, id.user_unit.as_deref().or(own_unit)) {
        (Some(names), _) => names.container.clone(),
        (None, Some(own)) if own.ends_with(".service") => unit(own),
        _ => service(of),
    };
    let all = [
        ("service.name", Some(name.as_str())),
        ("service.namespace", names.map(|names| names.namespace.as_str())),
        ("k8s.namespace.name", names.map(|names| names.namespace.as_str())),
        ("k8s.pod.name", names.map(|names| names.pod.as_str())),
        ("k8s.pod.uid", id.pod.as_deref()),
        ("k8s.container.name", names.map(|names| names.container.as_str())),
        ("container.id", number.as_deref()),
        ("container.name", machine.as_deref()),
        ("orbit.unit", id.unit.as_deref()),
        ("orbit.user_unit", id.user_unit.as_deref()),
        ("host.name", Some(host)),
    ];
    let all: Vec<Value> = all.iter().filter_map(|(key, value)| value.map(|value| text(key, value))).collect();
    json!({ "attributes": all })
}

/// Nanoseconds since 1970, as a text.
fn nanos(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Label;
    use crate::identity::{Names, of_path};
    use crate::metrics::{Cost, Metrics};
    use orbit_ahd::{Kind as HangKind, Sure};
    use std::time::Duration;

    const CONTAINER: &str = "0f99ad5f45163ed14ab8eaf92ed34bb4a631d007f8755a7d79be614bcb0df0ef";
    const POD: &str = "ff49d0be-16b7-4a49-bb9e-8ec1f1f4e27f";

    fn at() -> SystemTime {
        UNIX_EPOCH + Duration::new(1_795_885_200, 5)
    }

    fn in_pod() -> Subject {
        let names = Names { pod: "cart-7d-x".into(), namespace: "shop".into(), container: "app".into() };
        let identity = of_path(&format!("/kubepods/pod{POD}/{CONTAINER}"));
        Subject { identity, names: Some(names), command: "cart".into(), user: Some(7), listed: None }
    }

    fn unit_of(path: &str) -> Subject {
        Subject { identity: of_path(path), command: "x".into(), ..Subject::default() }
    }

    fn of_resource(of: &Subject) -> Vec<(String, String)> {
        let all = resource("n1", of);
        let pair = |pair: &Value| {
            let part = |value: &Value| value.as_str().expect("a text").to_owned();
            (part(&pair["key"]), part(&pair["value"]["stringValue"]))
        };
        all["attributes"].as_array().expect("a list").iter().map(pair).collect()
    }

    #[test]
    fn a_record_has_the_form_of_the_mapping() {
        let fields = [("ORBIT_POLICY", "p"), ("ORBIT_TID", "12"), ("OBJECT_PID", "7"), ("ORBIT_REPORT", "")];
        let record = Record::new("n1", Some(&in_pod()), Kind::Hang, "it \"hangs\"", &fields, at());
        let got: Value = serde_json::from_str(&logs(&[record])).expect("JSON");
        let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let number = |key: &str, value: &str| json!({ "key": key, "value": { "intValue": value } });
        let resource = [
            text("service.name", "app"),
            text("service.namespace", "shop"),
            text("k8s.namespace.name", "shop"),
            text("k8s.pod.name", "cart-7d-x"),
            text("k8s.pod.uid", POD),
            text("k8s.container.name", "app"),
            text("container.id", CONTAINER),
            text("host.name", "n1"),
        ];
        let record = json!({
            "timeUnixNano": "1795885200000000005", "observedTimeUnixNano": "1795885200000000005",
            "severityNumber": 17, "severityText": "ERROR", "eventName": "orbit.hang",
            "body": { "stringValue": "it \"hangs\"" },
            "attributes": [text("orbit.policy", "p"), number("thread.id", "12"), number("process.pid", "7")],
        });
        let scopes = json!([{
            "scope": { "name": "orbit-agent", "version": env!("CARGO_PKG_VERSION") }, "logRecords": [record],
        }]);
        let whole = json!({ "resourceLogs": [{ "resource": { "attributes": resource }, "scopeLogs": scopes }] });
        assert_eq!(got, whole);
    }

    #[test]
    fn records_of_a_service_are_together_and_in_order() {
        let (a, b) = (unit_of("/system.slice/a.service"), unit_of("/system.slice/b.service"));
        let of = |subject, text: &str| Record::new("n1", subject, Kind::Action, text, &[], at());
        let all = [of(Some(&a), "1"), of(Some(&b), "2"), of(Some(&a), "3"), of(None, "4")];
        let got: Value = serde_json::from_str(&logs(&all)).expect("JSON");
        let groups: Vec<(&str, Vec<&str>)> = got["resourceLogs"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|group| {
                let records = group["scopeLogs"][0]["logRecords"].as_array().expect("a list");
                let name = group["resource"]["attributes"][0]["value"]["stringValue"].as_str().expect("a name");
                (name, records.iter().map(|r| r["body"]["stringValue"].as_str().expect("a text")).collect())
            })
            .collect();
        assert_eq!(groups, [("a.service", vec!["1", "3"]), ("b.service", vec!["2"]), ("orbit-agent", vec!["4"])]);
    }

    #[test]
    fn a_service_has_one_name_on_all_machines() {
        let name = |path: &str| of_resource(&unit_of(path)).remove(0).1;
        assert_eq!(name("/system.slice/system-redis.slice/redis-server@17.service"), "redis-server@.service");
        assert_eq!(name("/user.slice/user-1.slice/user@1.service/app.slice/b.service"), "b.service");
        assert_eq!(name(&format!("/docker/{CONTAINER}")), "container 0f99ad5f4516");
        assert_eq!(name("/"), "x");
        let machine = of_resource(&unit_of("/machine.slice/systemd-nspawn@web.service/payload/system.slice/a.service"));
        let value = |key: &str| machine.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str());
        assert_eq!([value("container.name"), value("container.id")], [Some("web"), None], "{machine:?}");
    }

    #[test]
    fn figures_have_the_form_of_the_mapping_and_no_process() {
        let mut m = Metrics::default();
        let labels = m.labels(&in_pod(), "p", &[Label::Namespace, Label::Unit, Label::Container, Label::Policy]);
        m.hang(&labels, HangKind::Blocked, Sure::Certain, Duration::from_millis(30));
        m.hang(&labels, HangKind::Blocked, Sure::Certain, Duration::from_secs(90));
        let families = m.families(Cost { cpu: 1.5, resident: 4096 });
        let body = metrics("n1", &families, at(), at() + Duration::from_secs(1));
        assert!(!body.contains("cart") && !body.contains("pid"), "{body}");
        let got: Value = serde_json::from_str(&body).expect("JSON");
        let all = got["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("a list");
        assert_eq!(all.len(), families.len(), "each of the page's");
        let of = |name: &str| all.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("{name}"));
        let hangs = &of("orbit.hangs")["sum"];
        assert_eq!((&hangs["aggregationTemporality"], &hangs["isMonotonic"]), (&json!(2), &json!(true)));
        let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let point = json!({
            "attributes": [
                text("k8s.container.name", "app"), text("orbit.kind", "blocked"), text("k8s.namespace.name", "shop"),
                text("orbit.policy", "p"), text("orbit.sure", "certain"),
            ],
            "startTimeUnixNano": "1795885200000000005", "timeUnixNano": "1795885201000000005", "asInt": "2",
        });
        assert!(hangs["dataPoints"].as_array().expect("a list").contains(&point), "{hangs}");
        let detection = of("orbit.hang_detection");
        assert_eq!(detection["unit"], "s");
        let point = &detection["histogram"]["dataPoints"][0];
        assert_eq!(point["bucketCounts"], json!(["0", "0", "0", "1", "0", "0", "0", "0", "0", "0", "0", "0", "1"]));
        assert_eq!(point["explicitBounds"].as_array().map(Vec::len), Some(12), "one less than counts");
        assert_eq!((&point["count"], &point["sum"]), (&json!("2"), &json!(90.03)));
        assert_eq!(of("orbit.agent_cpu")["sum"]["dataPoints"][0]["asDouble"], json!(1.5));
        let memory = of("orbit.agent_resident_memory");
        assert_eq!((&memory["unit"], &memory["gauge"]["dataPoints"][0]["asInt"]), (&json!("By"), &json!("4096")));
    }

    #[test]
    fn a_partial_success_is_named() {
        let of = |text: &str| rejected(text.as_bytes());
        assert_eq!([of("{}"), of(""), of("{\"partialSuccess\":{}}")], [None, None, None]);
        assert_eq!(of("{\"partialSuccess\":{\"errorMessage\":\"slow\"}}"), None, "a warning");
        let some = of("{\"partialSuccess\":{\"rejectedLogRecords\":\"3\",\"errorMessage\":\"too old\"}}");
        assert_eq!(some.as_deref(), Some("3 rejected: too old"));
        assert!(of("{\"partialSuccess\":{\"rejectedDataPoints\":1}}").is_some());
    }

    #[test]
    fn long_sentences_are_cut_between_characters() {
        let long = "é".repeat(MAX_TEXT_BYTES);
        assert_eq!(cut(&format!("a{long}")).len(), MAX_TEXT_BYTES - 1);
        assert_eq!(cut("é"), "é");
    }
}
