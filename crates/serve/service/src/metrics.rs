//! What services used, as Prometheus reads it.

use crate::protocol::Service;
use std::fmt::Write;

/// A metric: its name, kind, help, and its value of a service.
type Metric = (&'static str, &'static str, &'static str, fn(&Service) -> f64);

const METRICS: [Metric; 11] = [
    ("runs_total", "counter", "Runs of the handler.", |s| s.runs as f64),
    ("upcalls_total", "counter", "Runs as upcalls in members.", |s| s.upcalls as f64),
    ("cpu_seconds_total", "counter", "CPU time, charged to the owner.", |s| s.cpu_ns as f64 / 1e9),
    ("aborts_total", "counter", "Runs aborted over their budget or for a fault.", |s| s.aborts as f64),
    ("dropped_events_total", "counter", "Events dropped: reservation used up, or queue full.", |s| s.dropped as f64),
    ("refused_values_total", "counter", "Values that a guard refused, and forged handles.", |s| s.refused as f64),
    ("ticks_due_total", "counter", "Ticks that were due: ran, merged and missed together.", |s| s.ticks_due as f64),
    ("ticks_ran_total", "counter", "Ticks that began a run.", |s| s.ticks_ran as f64),
    ("ticks_merged_total", "counter", "Ticks merged with a later one.", |s| s.ticks_merged as f64),
    ("ticks_missed_total", "counter", "Ticks missed: reservation used up.", |s| s.ticks_missed as f64),
    ("revoked", "gauge", "1 when the service was revoked.", |s| f64::from(u8::from(s.is_revoked))),
];

/// The text format, version 0.0.4.
pub fn text(services: &[Service], members: usize) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in METRICS {
        let _ = write!(text, "# HELP orbit_service_{name} {help}\n# TYPE orbit_service_{name} {kind}\n");
        for service in services {
            let label = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(
                text,
                "orbit_service_{name}{{id=\"{}\",name=\"{}\",class=\"{}\",owner=\"{}\"}} {}",
                label(&service.id),
                label(&service.name),
                label(&service.class),
                service.owner,
                value(service)
            );
        }
    }
    let _ = write!(
        text,
        "# HELP orbit_service_members Programs that upcalls run in.\n# TYPE orbit_service_members \
         gauge\norbit_service_members {members}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_a_line_in_each_metric_and_labels_are_escaped() {
        let service = Service {
            id: "w1".into(),
            name: "a\"b\\c\nd".into(),
            class: "wasm".into(),
            owner: 42,
            budget: "50us/10ms".into(),
            is_revoked: true,
            runs: 7,
            upcalls: 0,
            cpu_ns: 1_500_000_000,
            aborts: 4,
            dropped: 2,
            refused: 1,
            ticks_due: 9,
            ticks_ran: 6,
            ticks_merged: 2,
            ticks_missed: 1,
        };
        let text = text(&[service], 3);
        assert!(
            text.contains(
                "orbit_service_cpu_seconds_total{id=\"w1\",name=\"a\\\"b\\\\c\\nd\",class=\"wasm\",owner=\"42\"} 1.5\n"
            ),
            "{text}"
        );
        assert!(text.contains("orbit_service_revoked{") && text.ends_with("orbit_service_members 3\n"));
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), METRICS.len() + 1);
    }
}
