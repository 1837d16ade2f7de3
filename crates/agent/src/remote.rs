//! Other nodes: the part `[remote]` of the configuration, and what the agent has of them.
//!
//! Promises: without that part nothing listens and nothing connects; what parses a peer's bytes has
//! no capabilities. A hang's report says whom its thread waits for on another node as far as that
//! node has answered, and is not kept back where it does not: a few seconds at most.

use crate::plain;
use orbit_modules::checkpoint;
use orbit_modules::hosted::Hosted;
use orbit_remote::files::Files;
use orbit_remote::follow::{self, Known, Waits};
use orbit_remote::heartbeat::Heartbeat;
use orbit_remote::link::{Link, Node, Standing};
use orbit_remote::{pin, server};
use orbit_rmk::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Nodes whose pins are used.
const MAX_NODES: usize = 64;

/// The part `[remote]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// The node's certificate, in PEM.
    certificate: PathBuf,
    /// Its key.
    key: PathBuf,
    /// The certificates by which those of all nodes are signed.
    ca: PathBuf,
    /// Where other nodes may use the pins of this one; without it they may not.
    listen: Option<SocketAddr>,
    /// Nodes whose pins are used here.
    #[serde(default)]
    node: Vec<NodeTable>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    /// As its certificate names it.
    name: String,
    /// Where its agent listens.
    address: SocketAddr,
    /// Addresses of its services; if left out, that of its agent.
    #[serde(default)]
    hosts: Vec<IpAddr>,
}

impl Remote {
    /// Whether it is sound.
    ///
    /// # Errors
    /// A sentence with the key.
    pub fn check(&self) -> Result<(), String> {
        if self.node.len() > MAX_NODES {
            return Err(format!("remote.node: {} nodes, {MAX_NODES} at most", self.node.len()));
        }
        for (nth, node) in self.node.iter().enumerate() {
            // It becomes a part of a pin's name.
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
            if node.name.is_empty() || node.name.len() > 253 || !node.name.chars().all(is_name) {
                return Err(format!("remote.node: {:?} is no name that a certificate can have (DNS)", node.name));
            }
            if self.node[..nth].iter().any(|other| other.name == node.name) {
                return Err(format!("remote.node: {} is given twice", node.name));
            }
        }
        Ok(())
    }

    fn files(&self) -> Files {
        Files { certificate: self.certificate.clone(), key: self.key.clone(), ca: self.ca.clone() }
    }
}

/// What the agent has of other nodes.
pub struct Nodes {
    links: Vec<Arc<Link>>,
    known: Vec<Known>,
    module: Client,
    /// Where other nodes use the pins of this one.
    pub listens: Option<SocketAddr>,
}

impl Nodes {
    /// Listens, and begins to connect.
    ///
    /// # Errors
    /// A sentence: an address that is taken, files that cannot be used, no thread.
    pub fn start(of: &Remote, hosted: &Hosted, say: fn(&str)) -> Result<Nodes, String> {
        let files = of.files();
        files.check().map_err(|e| format!("remote: {e}"))?;
        let listens = of.listen.map(|at| {
            let say: server::Say = Arc::new(say);
            server::serve(hosted.core().clone(), at, files.clone(), plain::spawn_boxed, say)
                .map_err(|e| format!("cannot serve other nodes at {at}: {e}"))
        });
        let listens = listens.transpose()?;
        let pins = checkpoint::all();
        let mut links = Vec::new();
        for node in &of.node {
            let its = Node { name: node.name.clone(), address: node.address };
            let link = Link::start(its, files.clone(), plain::spawn_boxed)
                .map_err(|e| format!("cannot connect to node {}: {e}", node.name))?;
            for kind in pin::of_node(&link, &pins) {
                hosted.core().register_pin(kind).map_err(|error| error.to_string())?;
            }
            links.push(link);
        }
        let hosts = |node: &NodeTable| match &node.hosts[..] {
            [] => vec![node.address.ip()],
            hosts => hosts.to_vec(),
        };
        let known = of.node.iter().map(|node| Known { name: node.name.clone(), hosts: hosts(node) }).collect();
        let nodes = Nodes { links, known, module: hosted.core().client("follow"), listens };
        nodes.load_heartbeat(hosted)?;
        Ok(nodes)
    }

    /// Has a module say which nodes are heard, where there are some.
    ///
    /// # Errors
    /// A sentence: it cannot be installed.
    pub fn load_heartbeat(&self, hosted: &Hosted) -> Result<(), String> {
        let names: Vec<String> = self.known.iter().map(|node| node.name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let options = Heartbeat::options(&names);
        hosted.install(HEARTBEAT, &[], |core| core.install::<Heartbeat>(options))
    }

    /// Whom a thread waits for on another node.
    pub fn waits_for(&self, pid: i32, tid: i32) -> Option<Waits> {
        if self.known.is_empty() {
            return None;
        }
        follow::waits_for(&self.module, &self.known, u32::try_from(pid).ok()?, u32::try_from(tid).ok()?)
    }

    /// The links to them.
    pub fn links(&self) -> &[Arc<Link>] {
        &self.links
    }
}

/// The name of the module that says which nodes are heard.
pub const HEARTBEAT: &str = <Heartbeat as orbit_rmk::Module>::NAME;

/// A node as the status has it.
pub fn status(link: &Link) -> Value {
    let Node { name, address } = link.node();
    let (state, seconds, why) = match link.standing() {
        Standing::Begun => ("not connected yet", None, None),
        Standing::Up { since } => ("heard", Some(since.elapsed().as_secs_f64()), None),
        Standing::Lost { since, why } => ("lost", Some(since.elapsed().as_secs_f64()), Some(why)),
    };
    json!({ "node": name, "address": address.to_string(), "state": state, "seconds": seconds, "why": why })
}

/// Whether a node is heard.
pub fn is_heard(link: &Link) -> bool {
    matches!(link.standing(), Standing::Up { .. })
}

#[cfg(test)]
mod tests {
    use super::Remote;

    #[test]
    fn names_of_nodes_are_those_of_certificates_and_given_once() {
        let read = |nodes: &str| {
            let text = format!("certificate = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n{nodes}");
            toml::from_str::<Remote>(&text).map_err(|e| e.to_string()).and_then(|remote| remote.check())
        };
        let node = |name: &str| format!("[[node]]\nname = \"{name}\"\naddress = \"10.0.0.2:9107\"\n");
        assert_eq!(read(""), Ok(()));
        assert_eq!(read(&(node("db1") + &node("db-2.shop.example"))), Ok(()));
        for (text, part) in [
            (node("db1") + &node("db1"), "given twice"),
            (node("db@1"), "no name"),
            (node(""), "no name"),
            ("[[node]]\nname = \"a\"\naddress = \"db1:9107\"\n".to_owned(), "invalid socket address"),
            (node("a") + "port = 1\n", "unknown field"),
            ((0..65).map(|n| node(&format!("n{n}"))).collect(), "64 at most"),
        ] {
            assert!(read(&text).is_err_and(|why| why.contains(part)), "{text}");
        }
    }
}
