//! Where figures and messages go: the part `[export]` of the configuration.
//!
//! Promises: an exporter that is not named is off; an unknown key is an error with its line.

use crate::policy::duration;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Of figures to a collector, without another in the configuration.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Exporters; one that is not named is off.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Export {
    /// A page of metrics.
    pub prometheus: Option<Prometheus>,
    /// The system's journal.
    pub journal: Option<Journal>,
    /// A collector of OpenTelemetry.
    pub otlp: Option<Otlp>,
    /// Events of Kubernetes.
    pub kubernetes: Option<Events>,
}

impl Export {
    /// Which labels services have in figures: those of the page; where there is none, all.
    pub fn labels(&self) -> Vec<Label> {
        self.prometheus.as_ref().map_or_else(all_labels, |page| page.labels.clone())
    }
}

/// A page of metrics.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prometheus {
    /// Where it is served: a loopback address.
    pub listen: SocketAddr,
    /// Which labels a service has there.
    #[serde(default = "all_labels")]
    pub labels: Vec<Label>,
}

/// A label of a service. Each has few values: never a process, a pod or a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// Kubernetes' namespace.
    Namespace,
    /// The container's name in its pod.
    Container,
    /// The system's unit.
    Unit,
    /// The policy that selected it.
    Policy,
    /// What made its pod, where `[kubernetes]` lists pods.
    Workload,
}

fn all_labels() -> Vec<Label> {
    vec![Label::Namespace, Label::Container, Label::Unit, Label::Policy]
}

/// The page for browsers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Where it is served.
    pub listen: Listen,
}

/// Where pages are served: a loopback address with its port, or a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// An address of this machine.
    Tcp(SocketAddr),
    /// A socket that is a file.
    File(PathBuf),
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Listen, String> {
        match text.parse::<SocketAddr>() {
            Ok(at) if at.ip().is_loopback() => Ok(Listen::Tcp(at)),
            Ok(_) => {
                Err(format!("\"{text}\": a page has no password: it is served on a loopback address or at a file"))
            }
            Err(_) if text.starts_with('/') && !text.ends_with('/') => Ok(Listen::File(text.into())),
            Err(_) => {
                Err(format!("\"{text}\" is neither an address as 127.0.0.1:9107 nor a path as /run/orbit/page.sock"))
            }
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Tcp(at) => write!(f, "{at}"),
            Listen::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The system's journal.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// Whether it is written to.
    pub enabled: bool,
    /// Its socket.
    #[serde(default = "journal_socket")]
    pub socket: PathBuf,
}

fn journal_socket() -> PathBuf {
    "/run/systemd/journal/socket".into()
}

/// Events of Kubernetes about the pods that policies select.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Whether they are sent.
    pub enabled: bool,
}

/// A collector of OpenTelemetry, which takes OTLP by HTTP with JSON.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "OtlpTable")]
pub struct Otlp {
    /// Where it listens.
    pub endpoint: SocketAddr,
    /// Time between two exports of figures.
    pub interval: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtlpTable {
    endpoint: String,
    interval: Option<String>,
}

impl TryFrom<OtlpTable> for Otlp {
    type Error = String;

    fn try_from(table: OtlpTable) -> Result<Otlp, String> {
        let address = table.endpoint.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let Some(endpoint) = address.and_then(|address| address.parse().ok()) else {
            let form = "must be an address with a port, as \"http://127.0.0.1:4318\"; for TLS, names and passwords \
                        let a collector on this machine forward";
            return Err(format!("export.otlp.endpoint = \"{}\" {form}", table.endpoint));
        };
        let interval = match table.interval.as_deref().map(duration) {
            None => DEFAULT_INTERVAL,
            Some(Some(interval)) if INTERVALS.contains(&interval) => interval,
            Some(_) => return Err("export.otlp.interval must be a time from \"1s\" to \"60m\", as \"60s\"".into()),
        };
        Ok(Otlp { endpoint, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_served_on_loopback_or_at_a_file() {
        let listen = |text: &str| Listen::try_from(text.to_owned());
        assert_eq!(listen("127.0.0.1:0"), Ok(Listen::Tcp(([127, 0, 0, 1], 0).into())));
        assert_eq!(listen("[::1]:9107").expect("an address").to_string(), "[::1]:9107");
        assert_eq!(listen("/run/x.sock"), Ok(Listen::File("/run/x.sock".into())));
        for wrong in ["0.0.0.0:9107", "192.0.2.1:1", "[::]:1"] {
            assert!(listen(wrong).is_err_and(|why| why.contains("no password")), "{wrong}");
        }
        for wrong in ["localhost:9107", "9107", "page.sock", "/run/", ""] {
            assert!(listen(wrong).is_err_and(|why| why.contains("neither")), "{wrong}");
        }
    }

    #[test]
    fn a_collector_is_an_address() {
        let otlp = |text: &str| toml::from_str::<Otlp>(text).expect("sound");
        let plain = otlp("endpoint = \"http://127.0.0.1:4318\"");
        assert_eq!((plain.endpoint, plain.interval), (([127, 0, 0, 1], 4318).into(), Duration::from_secs(60)));
        let other = otlp("endpoint = \"http://[::1]:1/\"\ninterval = \"5s\"");
        assert_eq!((other.endpoint.to_string().as_str(), other.interval), ("[::1]:1", Duration::from_secs(5)));
    }
}
