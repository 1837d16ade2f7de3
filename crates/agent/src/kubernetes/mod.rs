//! What the agent has of Kubernetes' API server: the pods of its node, and Events about them.
//!
//! | file | what it owns |
//! |---|---|
//! | `api` | a request, with the certificate and the token of a service account |
//! | [`pods`] | which pods run here, with labels and workload |
//! | [`events`] | what is said about a pod |
//!
//! Promises: the token is read anew for each request, for it changes each hour; it is sent to the
//! server that the certificate proves and shown nowhere. Both threads have no capabilities.

mod api;
pub mod events;
pub mod pods;

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where a pod finds the token and certificate of its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The part `[kubernetes]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// The API server.
    pub server: SocketAddr,
    /// A file with the token.
    pub token: PathBuf,
    /// A file with the certificates that the server's may be signed by.
    pub ca: PathBuf,
    /// The name of this node.
    pub node: String,
}

/// The same as it is written: what is left out comes from the environment of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    server: Option<String>,
    token: Option<PathBuf>,
    ca: Option<PathBuf>,
    node: Option<String>,
}

impl Table {
    /// Fills in what was left out, from variables.
    ///
    /// # Errors
    /// A sentence: which key is missing or wrong.
    pub fn resolve(self, variable: impl Fn(&str) -> Option<String>) -> Result<Kubernetes, String> {
        let given = self.server.or_else(|| {
            let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
            Some(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
        });
        let Some(given) = given else {
            let why = "outside of a pod it has to be given, as \"https://10.0.0.1:6443\"";
            return Err(format!("kubernetes.server is missing: {why}"));
        };
        let address = given.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let Some(server) = address.and_then(|address| address.parse().ok()) else {
            let form = "must be an address with a port, as \"https://10.0.0.1:6443\": its certificate has to name it";
            return Err(format!("kubernetes.server = \"{given}\" {form}"));
        };
        let Some(node) = self.node.or_else(|| variable("NODE_NAME")) else {
            let how = "give the node's name, or NODE_NAME in the environment (fieldRef: spec.nodeName)";
            return Err(format!("kubernetes.node is missing: {how}"));
        };
        // By Kubernetes' rules for names of nodes; it becomes a part of a query.
        if node.is_empty() || !node.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
            return Err(format!("kubernetes.node = \"{node}\" is no name of a node"));
        }
        let token = self.token.unwrap_or_else(|| format!("{ACCOUNT}/token").into());
        let ca = self.ca.unwrap_or_else(|| format!("{ACCOUNT}/ca.crt").into());
        Ok(Kubernetes { server, token, ca, node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Kubernetes, String> {
        let table: Table = toml::from_str(text).expect("sound");
        table.resolve(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn in_a_pod_nothing_need_be_given() {
        let pod = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443"), ("NODE_NAME", "n1")];
        let found = read("", &pod).expect("all is there");
        assert_eq!((found.server, found.node.as_str()), (([10, 96, 0, 1], 443).into(), "n1"));
        assert_eq!(found.token, PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token"));
        let six = [("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "443"), ("NODE_NAME", "n1")];
        assert_eq!(read("", &six).expect("all is there").server.to_string(), "[fd00::1]:443");
        let given = read("server = \"https://192.0.2.1:6443/\"\nnode = \"a.b-c\"", &pod).expect("sound");
        assert_eq!((given.server.to_string().as_str(), given.node.as_str()), ("192.0.2.1:6443", "a.b-c"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let named = [("NODE_NAME", "n1")];
        for (text, variables, part) in [
            ("", &named[..], "kubernetes.server is missing"),
            ("server = \"https://10.0.0.1:6443\"", &[], "kubernetes.node is missing"),
            ("server = \"http://10.0.0.1:6443\"", &named, "must be an address"),
            ("server = \"https://api.example:6443\"", &named, "must be an address"),
            ("server = \"https://10.0.0.1:6443\"\nnode = \"a&limit=1\"", &[], "is no name of a node"),
            ("server = \"https://10.0.0.1:6443\"\nnode = \"\"", &[], "is no name of a node"),
        ] {
            assert!(read(text, variables).is_err_and(|why| why.contains(part)), "{text}");
        }
    }
}
