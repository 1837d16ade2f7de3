//! Pods by their labels, and Events about them, with an API server of the test's own.

use crate::guard_common::{Dir, Owned, skipped, until};
use crate::running::{Agent, Group, program, start, well};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

const CONTAINER: &str = "0f99ad5f45163ed14ab8eaf92ed34bb4a631d007f8755a7d79be614bcb0df0ef";

/// A number of a pod of this test's own.
fn uid(nth: u32) -> String {
    format!("{:08x}-16b7-4a49-bb9e-{nth:012x}", std::process::id())
}

/// A server with its certificate and the token of an account.
struct Server {
    dir: Dir,
    port: u16,
    _process: Owned,
}

impl Server {
    /// Nothing, and a line that says so, where what it needs is missing.
    fn start(name: &str) -> Option<Server> {
        for tool in ["openssl", "python3"] {
            if Command::new(tool).arg("version").output().is_err() {
                println!("SKIP: needs {tool}");
                return None;
            }
        }
        let dir = Dir::new(name);
        certificate(&dir, "cert.pem", "key.pem");
        dir.file("token", "first\n");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/api_server.py");
        let process = Command::new("python3").arg(script).arg(&dir.0).stdin(Stdio::null()).spawn().expect("python3");
        let process = Owned(process);
        let port = until("the server", || std::fs::read_to_string(dir.0.join("port")).ok()?.parse().ok());
        Some(Server { dir, port, _process: process })
    }

    fn pods(&self, items: &[Value]) {
        self.dir.file("pods.new", &json!({ "kind": "PartialObjectMetadataList", "items": items }).to_string());
        std::fs::rename(self.dir.0.join("pods.new"), self.dir.0.join("pods.json")).expect("renamed");
    }

    fn requests(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.0.join("requests.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// A configuration with policies, for this server and a file of certificates.
    fn config(&self, ca: &str, policies: &str) -> String {
        let file = |name: &str| self.dir.0.join(name).display().to_string();
        format!(
            "[export.prometheus]\nlisten = \"127.0.0.1:0\"\nlabels = [\"namespace\", \"workload\"]\n\
             [export.kubernetes]\nenabled = true\n\
             [kubernetes]\nserver = \"https://127.0.0.1:{}\"\nnode = \"n1\"\ntoken = {:?}\nca = {:?}\n{policies}",
            self.port,
            file("token"),
            file(ca)
        )
    }
}

/// A certificate of the address on which the server listens, signed by itself.
fn certificate(dir: &Dir, cert: &str, key: &str) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"])
        // An authority's own certificate may not be the server's.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(dir.0.join(key))
        .arg("-out")
        .arg(dir.0.join(cert))
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn pod(uid: &str, name: &str, app: &str) -> Value {
    json!({ "metadata": {
        "name": name, "namespace": "shop", "uid": uid, "labels": { "app": app, "pod-template-hash": "5d8f" },
        "ownerReferences": [{ "kind": "ReplicaSet", "name": format!("{app}-5d8f"), "controller": true }],
    }})
}

fn group(uid: &str) -> Option<Group> {
    Group::make(&format!("kubepods/pod{uid}"), CONTAINER)
}

#[test]
fn a_pod_is_selected_by_its_labels_and_its_hang_is_an_event() {
    if skipped() {
        return;
    }
    let Some(server) = Server::start("agent-k8s") else { return };
    let [cart, bank, late] = [1, 2, 3].map(uid);
    server.pods(&[pod(&cart, "cart-5d8f-x", "cart"), pod(&bank, "bank-5d8f-y", "bank")]);
    let bin = program(&server.dir, "oa-k8s");
    let policies = "[[policy]]\nname = \"labels\"\nmatch = { command = \"oa-k8s\", labels = { app = \"ca*\" } }\n\
                    [[policy]]\nname = \"made\"\nmatch = { command = \"oa-k8s\", workload = \"late\" }\n";
    let agent = Agent::start(&server.dir, &server.config("cert.pem", policies));
    let (Some(one), Some(two), Some(three)) = (group(&cart), group(&bank), group(&late)) else { return };
    let _hangs = start(&bin, "ring2", Some(&one));
    let _other = start(&bin, "ring2", Some(&two));
    agent.watches("labels", 1);
    let posted = || server.requests().into_iter().find(|request| request["method"] == "POST");
    let event = until("an Event", posted);
    assert_eq!(event["path"], "/apis/events.k8s.io/v1/namespaces/shop/events");
    assert_eq!(event["head"]["Authorization"], "Bearer first");
    let body = &event["body"];
    assert_eq!((&body["reason"], &body["type"]), (&"Hang".into(), &"Warning".into()), "{body:#}");
    assert_eq!(
        (&body["regarding"]["name"], &body["regarding"]["uid"]),
        (&"cart-5d8f-x".into(), &cart.clone().into()),
        "{body:#}"
    );
    assert!(body["note"].as_str().is_some_and(|note| note.contains("could wake each other")), "{body:#}");
    until("the figure", || agent.page("text/plain").contains("workload=\"cart\"").then_some(()));
    // What a list is asked for has no secrets, and the token changes.
    let lists = || server.requests().into_iter().filter(|request| request["method"] == "GET").collect::<Vec<_>>();
    let list = &lists()[0];
    assert!(list["path"].as_str().is_some_and(|path| path.contains("spec.nodeName%3Dn1")), "{list}");
    assert!(list["head"]["Accept"].as_str().is_some_and(|kind| kind.contains("PartialObjectMetadataList")), "{list}");
    server.dir.file("token", "second");
    // A pod that is not in the list is undecided, and has it read again.
    let _late = start(&bin, "ring2", Some(&three));
    until("the reason", || agent.status().to_string().contains("not in the API server's list").then_some(()));
    server.pods(&[pod(&cart, "cart-5d8f-x", "cart"), pod(&late, "late-5d8f-z", "late")]);
    agent.watches("made", 1);
    assert_eq!(lists().last().expect("a list")["head"]["Authorization"], "Bearer second");
    assert!(!agent.log().contains("second"), "the token is shown: {}", agent.log());
}

#[test]
fn a_server_that_does_not_prove_itself_hears_nothing() {
    if skipped() {
        return;
    }
    let Some(server) = Server::start("agent-k8s-other") else { return };
    certificate(&server.dir, "other.pem", "other-key.pem");
    let own = uid(4);
    server.pods(&[pod(&own, "cart-5d8f-x", "cart")]);
    let bin = well(&server.dir, "oa-k8s-other");
    let policies =
        "[[policy]]\nname = \"labels\"\nmatch = { command = \"oa-k8s-other\", labels = { app = \"cart\" } }\n";
    let Some(group) = group(&own) else { return };
    let _program = start(&bin, "1000", Some(&group));
    let agent = Agent::start(&server.dir, &server.config("other.pem", policies));
    let shows = |part: &str| until(part, || agent.status()["unwatched"].to_string().contains(part).then_some(()));
    shows("invalid peer certificate");
    assert!(server.requests().is_empty(), "{:?}", server.requests());
    // Each reason is named, and once it is gone all is well.
    server.dir.file("other.pem", "nothing");
    shows("other.pem has no certificate");
    std::fs::copy(server.dir.0.join("cert.pem"), server.dir.0.join("other.pem")).expect("copied");
    std::fs::rename(server.dir.0.join("pods.json"), server.dir.0.join("pods.kept")).expect("renamed");
    shows("its service account may not list pods (403)");
    server.dir.file("token", "");
    shows("token has no token");
    server.dir.file("token", "third");
    std::fs::rename(server.dir.0.join("pods.kept"), server.dir.0.join("pods.json")).expect("renamed");
    agent.watches("labels", 1);
    until("that it is over", || agent.log().contains("the pods of this node are known again").then_some(()));
}

#[test]
fn an_event_is_tried_again_and_the_end_waits_for_nobody() {
    if skipped() {
        return;
    }
    let Some(server) = Server::start("agent-k8s-busy") else { return };
    let own = uid(5);
    server.pods(&[pod(&own, "cart-5d8f-x", "cart")]);
    server.dir.file("refuses", "");
    let bin = program(&server.dir, "oa-k8s-busy");
    let policies =
        "[[policy]]\nname = \"labels\"\nmatch = { command = \"oa-k8s-busy\", labels = { app = \"cart\" } }\n";
    let agent = Agent::start(&server.dir, &server.config("cert.pem", policies));
    let Some(group) = group(&own) else { return };
    let hangs = start(&bin, "ring2", Some(&group));
    let posts = || server.requests().iter().filter(|request| request["method"] == "POST").count();
    until("a second attempt", || (posts() >= 2).then_some(()));
    assert!(agent.log().contains("Events to Kubernetes: status 503"), "{}", agent.log());
    std::fs::remove_file(server.dir.0.join("refuses")).expect("removed");
    until("that it is taken", || agent.log().contains("Events to Kubernetes: accepted again").then_some(()));
    server.dir.file("refuses", "");
    drop(hangs);
    let ends = std::time::Instant::now();
    assert!(agent.end().success());
    assert!(ends.elapsed() < std::time::Duration::from_secs(60), "the end took {:?}", ends.elapsed());
}
