//! The pods of this node: names, labels, workloads.
//!
//! Promises: of each pod only its metadata is asked for, never its specification, which has
//! secrets; a list that could not be read leaves the last one, and the reason is said once; a pod
//! that is not in the list is unknown, and has the list read again. Nothing waits for the server.

use crate::kubernetes::Kubernetes;
use crate::kubernetes::api::Api;
use crate::plain;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lists.
const READ_EVERY: Duration = Duration::from_secs(15);
/// After a list without a pod that was asked for, or a failure.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// For a request and its answer.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Bytes of a list: metadata of a thousand pods is one MiB or two.
const MAX_BYTES: usize = 32 << 20;
/// Asks for metadata alone, which needs no other right than the whole.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// By which a static pod is known to the kubelet; the API server gives it another number.
const STATIC: &str = "kubernetes.io/config.hash";

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its number at the API server.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What made it: the name of the Deployment, StatefulSet, DaemonSet or Job.
    pub workload: Option<String>,
}

/// The list, as its thread keeps it.
#[derive(Clone, Debug)]
pub struct Pods {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    list: Mutex<List>,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct List {
    /// By the kubelet's number.
    pods: HashMap<String, Arc<Pod>>,
    is_read: bool,
    trouble: Option<String>,
    /// A pod was asked for that is not in it.
    is_wanted: bool,
}

impl Pods {
    /// Starts the thread. `say` gets the first failure in a row, and that it is over.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start(of: &Kubernetes, say: impl Fn(&str) + Send + 'static) -> io::Result<Pods> {
        let pods = Pods { shared: Arc::default() };
        let (api, shared) = (Api::new(of), pods.shared.clone());
        plain::spawn("orbit-pods", move || {
            loop {
                let was = shared.read(&api);
                let is = shared.lock().trouble.clone();
                match (was, &is) {
                    (None, Some(why)) => say(&format!("the pods of this node: {why}")),
                    (Some(_), None) => say("the pods of this node are known again"),
                    _ => {}
                }
                shared.wait(is.is_some());
            }
        })?;
        Ok(pods)
    }

    /// The list as it is now, read once; what is missing says why.
    pub fn read_once(of: &Kubernetes) -> Pods {
        let pods = Pods { shared: Arc::default() };
        pods.shared.read(&Api::new(of));
        pods
    }

    /// The pod of this number.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn of(&self, uid: &str) -> Result<Arc<Pod>, String> {
        let mut list = self.shared.lock();
        if let Some(pod) = list.pods.get(uid) {
            return Ok(pod.clone());
        }
        list.is_wanted = true;
        self.shared.wanted.notify_all();
        Err(match &list.trouble {
            Some(why) => format!("the pods of this node are not known: {why}"),
            None if list.is_read => "its pod is not in the API server's list".into(),
            None => "the pods of this node are not read yet".into(),
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the list anew. Answers what was wrong before.
    fn read(&self, api: &Api) -> Option<String> {
        self.lock().is_wanted = false;
        // From the server's cache: exact to a second or so, and cheap for a large cluster.
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}&resourceVersion=0", api.node());
        let got = match api.get(&path, METADATA, MAX_BYTES, Instant::now() + REQUEST_TIME) {
            Ok(answer) if answer.status == 200 => parse(&answer.body),
            Ok(answer) if answer.status == 401 => Err("the API server does not know its token (401)".into()),
            Ok(answer) if answer.status == 403 => Err("its service account may not list pods (403)".into()),
            Ok(answer) => Err(format!("status {} of the API server at {}", answer.status, api.server())),
            Err(e) => Err(format!("no answer of the API server at {}: {e}", api.server())),
        };
        let mut list = self.lock();
        let was = list.trouble.take();
        match got {
            Ok(pods) => (list.pods, list.is_read) = (pods, true),
            Err(why) => list.trouble = Some(why),
        }
        was
    }

    /// Waits until the list is to be read again.
    fn wait(&self, failed: bool) {
        let begun = Instant::now();
        let mut list = self.lock();
        loop {
            let time = if failed || list.is_wanted { READ_AGAIN } else { READ_EVERY };
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            list = self.wanted.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[derive(Deserialize)]
struct Items {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: HashMap<String, String>,
    #[serde(default)]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    name: String,
    #[serde(default)]
    controller: bool,
}

/// The pods of an answer, by the kubelet's number.
fn parse(body: &[u8]) -> Result<HashMap<String, Arc<Pod>>, String> {
    let Items { items } =
        serde_json::from_slice(body).map_err(|e| format!("the API server's list of pods has another form: {e}"))?;
    let pods = items.into_iter().map(|Item { metadata: of }| {
        let number = of.annotations.get(STATIC).unwrap_or(&of.uid).clone();
        let workload =
            of.owner_references.iter().find(|owner| owner.controller).map(|owner| made_by(owner, &of.labels));
        let Metadata { name, namespace, uid, labels, .. } = of;
        (number, Arc::new(Pod { name, namespace, uid, labels, workload }))
    });
    Ok(pods.collect())
}

/// The workload that a user knows: a Deployment's pods are made by a ReplicaSet, whose name ends
/// with the hash that is a label of the pod.
fn made_by(owner: &Owner, labels: &BTreeMap<String, String>) -> String {
    let hash = labels.get("pod-template-hash").filter(|_| owner.kind == "ReplicaSet");
    let base = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    base.unwrap_or(&owner.name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_gives_names_labels_and_workloads() {
        let body = br#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[
            {"metadata":{"name":"cart-5d8f-x2","namespace":"shop","uid":"u1",
             "labels":{"app":"cart","pod-template-hash":"5d8f"},
             "ownerReferences":[{"apiVersion":"v1","kind":"Other","name":"o","uid":"y"},
                                {"apiVersion":"apps/v1","kind":"ReplicaSet","name":"cart-5d8f","controller":true}]}},
            {"metadata":{"name":"db-0","namespace":"shop","uid":"u2","ownerReferences":[
             {"kind":"StatefulSet","name":"db","controller":true}]}},
            {"metadata":{"name":"etcd-n1","namespace":"kube-system","uid":"u3",
             "annotations":{"kubernetes.io/config.hash":"0123456789abcdef0123456789abcdef"},
             "ownerReferences":[{"kind":"Node","name":"n1","controller":true}]}},
            {"metadata":{"name":"bare","namespace":"default","uid":"u4","labels":{}}}]}"#;
        let pods = parse(body).expect("a list");
        assert_eq!(pods.len(), 4);
        let cart = &pods["u1"];
        assert_eq!(
            (cart.namespace.as_str(), cart.name.as_str(), cart.labels["app"].as_str()),
            ("shop", "cart-5d8f-x2", "cart")
        );
        let workload = |number: &str| pods[number].workload.as_deref();
        assert_eq!((workload("u1"), workload("u2"), workload("u4")), (Some("cart"), Some("db"), None));
        let fixed = &pods["0123456789abcdef0123456789abcdef"];
        assert_eq!((fixed.name.as_str(), fixed.uid.as_str()), ("etcd-n1", "u3"));
    }

    #[test]
    fn another_form_is_said() {
        for body in [
            "",
            "[]",
            "{\"items\":[{}]}",
            "{\"kind\":\"Status\",\"code\":403}",
            "{\"items\":[{\"metadata\":{\"name\":1}}]}",
        ] {
            assert!(parse(body.as_bytes()).is_err_and(|why| why.contains("another form")), "{body}");
        }
    }
}
