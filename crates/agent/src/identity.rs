//! Which service a process belongs to, by the text of its `/proc/PID/cgroup` alone: no D-Bus, no
//! API server, no runtime's socket.
//!
//! Promises: pure functions; a part of a path counts only in a form that a service manager, the
//! kubelet or a container runtime writes (an allow-list); what is in no such form gives nothing.
//! A part below `user.slice` never makes a pod, and a unit inside a container or of a user's
//! manager is not taken for one of the system's: ordinary users choose these names.

use serde::Serialize;
use std::path::Path;

/// What the path of a control group says of its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Identity {
    /// The path, as the kernel shows it.
    pub cgroup: String,
    /// The unit of the system's service manager: a `.service` or `.scope`.
    pub unit: Option<String>,
    /// The unit of a user's service manager, below `user@UID.service`.
    pub user_unit: Option<String>,
    /// Kubernetes' number of the pod.
    pub pod: Option<String>,
    /// The container's number, or the name of a machine (nspawn, LXC).
    pub container: Option<String>,
    /// Who made the container: `containerd`, `cri-o`, `docker`, `podman`, `nspawn`, `lxc`, `oci`.
    pub runtime: Option<&'static str>,
}

/// Kubernetes' names of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Names {
    /// The pod's.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    /// The container's within the pod.
    pub container: String,
}

/// Length of a container's number.
const CONTAINER_HEX: usize = 64;

/// Reads the identity from a whole `/proc/PID/cgroup`, which has a line for each hierarchy.
///
/// On a hybrid machine the hierarchies disagree: a runtime that knows version 1 only leaves a
/// container's processes where they were in the unified one. So a path that names a container
/// counts before one that names a unit, and that before any other.
pub fn of_process(text: &str) -> Identity {
    let all: Vec<Identity> = paths(text).into_iter().map(of_path).collect();
    let best = all.iter().find(|i| i.container.is_some()).or_else(|| all.iter().find(|i| i.unit.is_some()));
    best.or_else(|| all.iter().find(|i| !i.cgroup.is_empty() && i.cgroup != "/"))
        .or(all.first())
        .cloned()
        .unwrap_or_default()
}

/// The paths of the hierarchies that may name services, in the order in which they count.
fn paths(text: &str) -> Vec<&str> {
    let by = |wanted: &str| {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            controllers.split(',').any(|name| name == wanted).then_some(path)
        })
    };
    ["", "name=systemd", "memory", "pids", "cpu"].into_iter().filter_map(by).collect()
}

/// Reads the identity from one path, which may be relative (`/../../burstable/podUID/ID`), as a
/// process in a control-group namespace sees it.
pub fn of_path(path: &str) -> Identity {
    let mut found = Identity { cgroup: path.to_owned(), ..Identity::default() };
    // The group was removed: what the name says is no longer true of the process.
    let Some(path) = (!path.ends_with(" (deleted)")).then_some(path) else { return found };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
    let is_users = parts.first() == Some(&"user.slice");
    let mut parent = "";
    for (at, part) in parts.iter().enumerate() {
        if found.runtime.is_some_and(|name| ["nspawn", "lxc"].contains(&name)) {
            // What is inside is the machine's own.
            break;
        }
        if let Some(uid) = pod(part).filter(|_| !is_users) {
            (found.pod, found.unit) = (Some(uid), None);
        } else if let Some((runtime, id, with_pod)) = container(part, parent) {
            if let Some(uid) = with_pod.filter(|_| !is_users) {
                found.pod = Some(uid);
            }
            found.runtime = Some(runtime);
            found.container = Some(id.to_owned());
            // `podman run --cgroups=split` and quadlets put the container below the unit it is.
            if !part.starts_with("libpod-payload-") {
                (found.unit, found.user_unit) = (None, None);
            }
        } else if let Some(name) = part.strip_prefix("lxc.payload.").filter(|name| !name.is_empty()) {
            (found.runtime, found.container, found.unit) = (Some("lxc"), Some(name.to_owned()), None);
        } else if parent == "lxc" && at == 1 {
            (found.runtime, found.container, found.unit) = (Some("lxc"), Some((*part).to_owned()), None);
        } else if is_unit(part) && found.container.is_none() {
            match &found.unit {
                None => found.unit = Some((*part).to_owned()),
                Some(outer) if outer.starts_with("user@") => found.user_unit = Some((*part).to_owned()),
                // A group that a unit made below itself.
                Some(_) => {}
            }
            if let Some(name) = machine(part, parts.get(at + 1)) {
                (found.runtime, found.container) = (Some("nspawn"), Some(name));
            }
        }
        parent = part;
    }
    found
}

fn is_unit(part: &str) -> bool {
    [".service", ".scope"].iter().any(|end| part.strip_suffix(end).is_some_and(|name| !name.is_empty()))
}

/// The machine of `systemd-nspawn@NAME.service/payload`.
fn machine(unit: &str, next: Option<&&str>) -> Option<String> {
    let name = unit.strip_prefix("systemd-nspawn@")?.strip_suffix(".service")?;
    (next == Some(&"payload") && !name.is_empty()).then(|| name.to_owned())
}

/// The pod's number from a part: `podUID` (driver cgroupfs), or a slice (driver systemd), as
/// `kubepods-burstable-podUID.slice`, with underscores. Static pods have 32 digits and no dashes.
fn pod(part: &str) -> Option<String> {
    let id = match part.strip_suffix(".slice") {
        None => part.strip_prefix("pod")?,
        Some(slice) => {
            let (class, id) = slice.rsplit_once("-pod")?;
            let base = ["-burstable", "-besteffort"].iter().find_map(|c| class.strip_suffix(c)).unwrap_or(class);
            (base == "kubepods" || base.ends_with("-kubepods")).then_some(id)?
        }
    };
    let id = id.replace('_', "-");
    let dashes = id.bytes().enumerate().filter(|(_, b)| *b == b'-').map(|(i, _)| i);
    let has_form = match id.len() {
        36 => dashes.eq([8, 13, 18, 23]),
        32 => dashes.count() == 0,
        _ => false,
    };
    (has_form && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')).then_some(id)
}

/// The container of a part: runtime, number, and the pod where the part has it too.
fn container<'a>(part: &'a str, parent: &str) -> Option<(&'static str, &'a str, Option<String>)> {
    // Nested names of the systemd driver: `SLICE:RUNTIME:ID`.
    let fields: Vec<&str> = part.split(':').collect();
    if let [slice, runtime, id] = fields[..] {
        return is_number(id).then_some((runtime_of(runtime)?, id, pod(slice)));
    }
    if let Some(scope) = part.strip_suffix(".scope") {
        let (prefix, id) = scope.rsplit_once('-')?;
        return is_number(id).then_some((runtime_of(prefix)?, id, None));
    }
    if let Some(id) = part.strip_prefix("libpod-payload-").or_else(|| part.strip_prefix("libpod-")) {
        return is_number(id).then_some(("podman", id, None));
    }
    if !is_number(part) {
        return None;
    }
    // A bare number counts only where a runtime puts one.
    match parent {
        "docker" => Some(("docker", part, None)),
        "libpod_parent" => Some(("podman", part, None)),
        _ if pod(parent).is_some() => Some(("oci", part, None)),
        _ => None,
    }
}

/// The runtime of a prefix; monitors beside containers (`crio-conmon-ID.scope`) have none.
fn runtime_of(prefix: &str) -> Option<&'static str> {
    Some(match prefix {
        "cri-containerd" | "containerd" | "nerdctl" => "containerd",
        "crio" => "cri-o",
        "docker" => "docker",
        "libpod" => "podman",
        _ => return None,
    })
}

fn is_number(text: &str) -> bool {
    text.len() == CONTAINER_HEX && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Kubernetes' names of a container, as the kubelet writes them in a folder of links to logs:
/// `POD_NAMESPACE_CONTAINER-ID.log`.
pub fn names(id: &str, logs: &Path) -> Option<Names> {
    let end = format!("-{id}.log");
    let entries = std::fs::read_dir(logs).ok()?.flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).find_map(|name| names_of(&name, &end))
}

/// Kubernetes' names hold no underscore, so each stands between two.
fn names_of(file: &str, end: &str) -> Option<Names> {
    let mut parts = file.strip_suffix(end)?.split('_').map(str::to_owned);
    let names = Names { pod: parts.next()?, namespace: parts.next()?, container: parts.next()? };
    let is_whole =
        parts.next().is_none() && ![&names.pod, &names.namespace, &names.container].iter().any(|n| n.is_empty());
    is_whole.then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0f99ad5f45163ed14ab8eaf92ed34bb4a631d007f8755a7d79be614bcb0df0ef";
    const UID: &str = "ff49d0be-16b7-4a49-bb9e-8ec1f1f4e27f";

    /// Unit, user's unit, pod, container and runtime of a path; `ID`, `UID` and `U_D` stand for
    /// the numbers.
    fn parts(path: &str) -> [String; 5] {
        let path = path.replace("UID", UID).replace("U_D", &UID.replace('-', "_")).replace("ID", ID);
        let i = of_path(&path);
        let short = |text: Option<String>| text.unwrap_or_default().replace(ID, "ID").replace(UID, "UID");
        [short(i.unit), short(i.user_unit), short(i.pod), short(i.container), i.runtime.unwrap_or("").into()]
    }

    #[test]
    fn units_of_the_system_and_of_users() {
        for (path, unit, user) in [
            ("/system.slice/nginx.service", "nginx.service", ""),
            ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", ""),
            ("/system.slice/redis-server@a\\x2db.service/sub/x", "redis-server@a\\x2db.service", ""),
            ("/system.slice/web.service/inner.service", "web.service", ""),
            ("/init.scope", "init.scope", ""),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", ""),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service", "init.scope"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", "user@1000.service", "a.service"),
            ("/machine.slice/libpod-conmon-ID.scope", "libpod-conmon-ID.scope", ""),
            ("/system.slice/crio-conmon-ID.scope", "crio-conmon-ID.scope", ""),
            ("/", "", ""),
            ("", "", ""),
            ("/system.slice", "", ""),
            ("/system.slice/.service", "", ""),
            ("/system.slice/gone.service (deleted)", "", ""),
            ("/../../nginx.service", "nginx.service", ""),
        ] {
            assert_eq!(parts(path), [unit, user, "", "", ""], "{path}");
        }
    }

    #[test]
    fn containers_and_pods_of_each_driver_and_runtime() {
        for (path, pod, runtime) in [
            ("/kubepods/burstable/podUID/ID", "UID", "oci"),
            ("/kubepods/podUID/ID", "UID", "oci"),
            ("/../../burstable/podUID/ID", "UID", "oci"),
            ("/../podUID/ID", "UID", "oci"),
            ("/kubepods.slice/kubepods-podU_D.slice/cri-containerd-ID.scope", "UID", "containerd"),
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_D.slice/crio-ID.scope",
                "UID",
                "cri-o",
            ),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/docker-ID.scope",
                "UID",
                "docker",
            ),
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_D.slice/cri-containerd-ID.scope/x",
                "UID",
                "containerd",
            ),
            ("/system.slice/containerd.service/kubepods-burstable-podU_D.slice:cri-containerd:ID", "UID", "containerd"),
            ("/system.slice/docker-ID.scope", "", "docker"),
            ("/docker/ID", "", "docker"),
            ("/machine.slice/libpod-ID.scope/container", "", "podman"),
            ("/libpod_parent/libpod-ID", "", "podman"),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope", "", "podman"),
            ("/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope", "", "podman"),
        ] {
            assert_eq!(parts(path), ["", "", pod, "ID", runtime], "{path}");
        }
        let quadlet = parts("/system.slice/web.service/libpod-payload-ID");
        assert_eq!(quadlet, ["web.service", "", "", "ID", "podman"]);
        let fixed = of_path("/kubepods/pod0123456789abcdef0123456789abcdef/x");
        assert_eq!(fixed.pod.as_deref(), Some("0123456789abcdef0123456789abcdef"), "a static pod");
        let inner =
            of_path(&format!("/docker/{}/kubepods/podff49d0be-16b7-4a49-bb9e-8ec1f1f4e27f/{ID}", "a".repeat(64)));
        assert_eq!((inner.container.as_deref(), inner.pod.as_deref()), (Some(ID), Some(UID)), "the innermost");
    }

    #[test]
    fn machines_hide_what_is_inside() {
        for (path, unit, name, runtime) in [
            (
                "/machine.slice/systemd-nspawn@db.service/payload/system.slice/a.service",
                "systemd-nspawn@db.service",
                "db",
                "nspawn",
            ),
            ("/lxc.payload.db/system.slice/a.service", "", "db", "lxc"),
            ("/lxc/db/init.scope", "", "db", "lxc"),
        ] {
            assert_eq!(parts(path), [unit, "", "", name, runtime], "{path}");
        }
        let supervisor = parts("/machine.slice/systemd-nspawn@db.service/supervisor");
        assert_eq!(supervisor, ["systemd-nspawn@db.service", "", "", "", ""]);
    }

    #[test]
    fn what_only_resembles_a_pod_or_a_container_is_none() {
        for path in [
            "/kubepods",
            "/kubepods/burstable",
            "/kubepods.slice/kubepods-burstable.slice",
            "/podman",
            "/pod",
            "/podcast/ID",
            "/podgg49d0be-16b7-4a49-bb9e-8ec1f1f4e27f",
            "/podff49d0be16b7-4a49-bb9e-8ec1f1f4e27f-x",
            "/my-podU_D.slice",
            "/evilkubepods-podU_D.slice",
            "/ID",
            "/somewhere/ID",
            "/IDff",
            "/docker/abc",
            "/user.slice/user-1000.slice/podUID",
            "/user.slice/user-1000.slice/kubepods-podU_D.slice",
            "/cri-containerd-ID",
        ] {
            assert_eq!(parts(path)[2..], ["", "", ""], "{path}");
        }
        let users = parts("/user.slice/user-1000.slice/user@1000.service/podUID/ID");
        assert_eq!(users[2], "", "an ordinary user may make a group of this name");
    }

    #[test]
    fn the_hierarchy_that_knows_most_counts() {
        let v1 = format!("4:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n");
        assert_eq!(of_process(&v1).container.as_deref(), Some(ID));
        let hybrid =
            format!("5:memory:/kubepods/pod{UID}/{ID}\n1:name=systemd:/x\n0::/system.slice/containerd.service\n");
        let i = of_process(&hybrid);
        assert_eq!((i.unit, i.pod.as_deref(), i.container.as_deref()), (None, Some(UID), Some(ID)));
        let systemd = "3:cpu,cpuacct:/x\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(of_process(systemd).unit.as_deref(), Some("a.service"));
        assert_eq!(of_process("0::/a:b/c.service\n").unit.as_deref(), Some("c.service"), "a path may have colons");
        assert_eq!(of_process("4:memory:/mine\n0::/\n").cgroup, "/mine");
        assert_eq!(of_process("4:memory_x:/mine\n").cgroup, "", "no hierarchy of this name");
        assert_eq!(of_process("nonsense\n::\n"), of_process("rubbish"));
    }

    #[test]
    fn names_that_the_kubelet_writes() {
        let end = format!("-{ID}.log");
        let names = |file: &str| names_of(&file.replace("ID", ID), &end).map(|n| [n.pod, n.namespace, n.container]);
        assert_eq!(names("cart-5b9-x_shop_app-ID.log"), Some(["cart-5b9-x".into(), "shop".into(), "app".into()]));
        for wrong in ["cart_shop-ID.log", "a_b_c_d-ID.log", "__-ID.log", "a_b_c-.log", "a_b_c-ID.log.1"] {
            assert_eq!(names(wrong), None, "{wrong}");
        }
    }
}
