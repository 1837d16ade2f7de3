//! What is shipped beside the command: unit, configuration, rules, dashboard, DaemonSet, image.

use crate::guard_common::Dir;
use std::path::PathBuf;
use std::process::Command;

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

#[test]
fn the_unit_is_rated_at_most_3_5() {
    let rated = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=35", "--no-pager"])
        .arg(packaging("orbit-agent.service"))
        .output();
    let Ok(rated) = rated else {
        println!("SKIP: needs systemd-analyze");
        return;
    };
    let text = [&rated.stdout[..], &rated.stderr[..]].map(String::from_utf8_lossy).concat();
    if text.contains("unrecognized option") {
        println!("SKIP: needs systemd-analyze security --offline (systemd 250)");
        return;
    }
    assert!(rated.status.success(), "{text}");
    let rate =
        text.lines().find_map(|line| line.split_once("exposure level for ")?.1.split(' ').nth(1)?.parse::<f64>().ok());
    assert!(rate.is_some_and(|rate| rate <= 3.5), "{text}");
}

#[test]
fn the_unit_has_three_rights_and_no_more() {
    let unit = std::fs::read_to_string(packaging("orbit-agent.service")).expect("the unit");
    for line in [
        "CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_KILL",
        "AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_KILL",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
    ] {
        assert!(unit.lines().any(|own| own == line), "{line}");
    }
}

#[test]
fn the_configuration_is_sound() {
    let done = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["agent", "--check"])
        .arg(packaging("agent.toml"))
        .output()
        .expect("orbit");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_alert_rules_pass_their_own_tests() {
    let folder = packaging("prometheus");
    for arguments in [["check", "rules", "orbit.rules.yml"], ["test", "rules", "orbit.rules.test.yml"]] {
        let Ok(done) = Command::new("promtool").args(arguments).current_dir(&folder).output() else {
            println!("SKIP: needs promtool (Debian's prometheus)");
            return;
        };
        let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(done.status.success() && text.contains("SUCCESS"), "{text}");
    }
}

/// Each query is a rule of its own to promtool; `scripts/reference.py` knows the metrics' names.
#[test]
fn the_queries_of_the_dashboard_are_sound() {
    let text = std::fs::read(packaging("grafana/orbit.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: std::collections::BTreeSet<u64> = panels.iter().map(|p| p["id"].as_u64().expect("a number")).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("queries"))
        .map(|query| query["expr"].as_str().expect("a query"))
        .collect();
    assert!(queries.len() >= panels.len());
    let rules: Vec<_> =
        (0..).zip(&queries).map(|(n, q)| serde_json::json!({ "record": format!("q:{n}"), "expr": q })).collect();
    let dir = Dir::new("agent-dashboard");
    let file = dir.file("rules.yml", &serde_json::json!({ "groups": [{ "name": "q", "rules": rules }] }).to_string());
    let Ok(done) = Command::new("promtool").args(["check", "rules"]).arg(file).output() else {
        println!("SKIP: needs promtool (Debian's prometheus)");
        return;
    };
    let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(done.status.success() && text.contains(&format!("{} rules found", queries.len())), "{text}");
}

/// What a collector's parts may be set to, as far as the shipped configuration does.
const PARTS: [(&str, &[&str]); 5] = [
    ("/receivers/otlp", &["protocols"]),
    ("/processors/memory_limiter", &["check_interval", "limit_mib"]),
    ("/processors/batch", &["timeout"]),
    ("/exporters/debug", &["verbosity"]),
    ("/exporters/file", &["path", "rotation"]),
];

#[test]
fn the_collectors_configuration_takes_what_the_agent_sends() {
    let file = packaging("otel/collector.yaml");
    let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let read = Command::new("python3").args(["-c", script]).arg(&file).output();
    let Some(read) = read.ok().filter(|read| !String::from_utf8_lossy(&read.stderr).contains("No module named")) else {
        println!("SKIP: needs python3 with yaml");
        return;
    };
    let text = String::from_utf8_lossy(&read.stderr);
    let all: serde_json::Value = serde_json::from_slice(&read.stdout).unwrap_or_else(|e| panic!("{e}: {text}"));
    let endpoint =
        all.pointer("/receivers/otlp/protocols/http/endpoint").and_then(|at| at.as_str()).expect("an address");
    let agent = std::fs::read_to_string(packaging("agent.toml")).expect("the configuration");
    assert!(agent.contains(&format!("# endpoint = \"http://{endpoint}\"")), "{endpoint}: the agent sends elsewhere");
    let keys = |of: &serde_json::Value| of.as_object().expect("a map").keys().cloned().collect::<Vec<_>>();
    for (part, known) in PARTS {
        let unknown = keys(all.pointer(part).expect(part)).into_iter().find(|key| !known.contains(&key.as_str()));
        assert_eq!(unknown, None, "{part}");
    }
    let pipelines = all["service"]["pipelines"].as_object().expect("pipelines");
    assert_eq!(pipelines.keys().collect::<Vec<_>>(), ["logs", "metrics"], "what the agent sends");
    for kind in ["receivers", "processors", "exporters"] {
        for (name, pipeline) in pipelines {
            let used: Vec<_> = pipeline[kind].as_array().expect(kind).iter().filter_map(|part| part.as_str()).collect();
            let unknown = used.iter().find(|part| !PARTS.iter().any(|(known, _)| *known == format!("/{kind}/{part}")));
            assert_eq!((used.is_empty(), unknown), (false, None), "{name}, {kind}");
        }
        let unused =
            keys(&all[kind]).into_iter().find(|part| !PARTS.iter().any(|(k, _)| *k == format!("/{kind}/{part}")));
        assert_eq!(unused, None);
    }
    let Ok(done) = Command::new("otelcol").args(["validate", "--config"]).arg(file).output() else {
        println!("SKIP: needs otelcol for its own judgement");
        return;
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The part of a file that is indented below this line, without the indent.
fn below(text: &str, line: &str) -> String {
    let mut lines = text.lines().skip_while(|own| own.trim() != line).skip(1).peekable();
    let indent = lines.peek().map_or(0, |own| own.len() - own.trim_start().len());
    let inside = lines.take_while(|own| own.len() - own.trim_start().len() >= indent && !own.is_empty());
    inside.map(|own| format!("{}\n", &own[indent..])).collect()
}

#[test]
fn the_daemon_set_is_sound_and_has_no_more_rights_than_it_needs() {
    let path = packaging("kubernetes/orbit-agent.yaml");
    let text = std::fs::read_to_string(&path).expect("the file");
    let rules = below(&text, "rules:");
    let granted: Vec<&str> = rules.lines().filter(|line| !line.contains("apiGroups")).map(str::trim).collect();
    assert_eq!(granted, ["resources: [pods]", "verbs: [list]", "resources: [events]", "verbs: [create]"]);
    let rights = "drop: [ALL]\nadd: [SYS_PTRACE, DAC_READ_SEARCH, KILL]\n";
    assert_eq!(below(&text, "capabilities:"), rights);
    assert!(text.contains("readOnlyRootFilesystem: true") && text.contains("type: RuntimeDefault"));
    let dir = Dir::new("daemon-set");
    let config = dir.file("agent.toml", &below(&text, "agent.toml: |"));
    let mut check = Command::new(env!("CARGO_BIN_EXE_orbit"));
    check.args(["agent", "--check"]).arg(config);
    // A port of this machine at which nobody listens: a list that cannot be read is no error.
    let pod = [("NODE_NAME", "n1"), ("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let done = check.envs(pod).output().expect("orbit");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let Ok(valid) = Command::new("kubernetes-validate").arg(&path).output() else {
        println!("SKIP: needs kubernetes-validate (pip install kubernetes-validate)");
        return;
    };
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stdout));
}

#[test]
fn an_image_has_the_command_and_the_same_bytes_each_time() {
    let dir = Dir::new("image");
    let source = dir.file("tiny.c", "int main(void) { return 7; }\n");
    let build = |name: &str, options: &[&str]| {
        let built = Command::new("cc").args(options).arg(&source).arg("-o").arg(dir.0.join(name)).output();
        built.is_ok_and(|built| built.status.success())
    };
    if !build("static", &["-static"]) || !build("dynamic", &[]) {
        println!("SKIP: needs cc and a static C library");
        return;
    }
    let image = |of: &str, to: &str| {
        let script = packaging("../scripts/image.py");
        Command::new("python3").arg(script).arg(dir.0.join(of)).arg(dir.0.join(to)).output().expect("python3")
    };
    let made = image("static", "one.tar");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(image("static", "two.tar").status.success());
    let [one, two] = ["one.tar", "two.tar"].map(|name| std::fs::read(dir.0.join(name)).expect("an image"));
    assert!(one == two, "the same command gives another image");
    let refused = image("dynamic", "three.tar");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("needs a loader"));
    // Each part is what its name says, and the layer has the command.
    let script = "set -e; tar xf one.tar; cd blobs/sha256; for f in *; do echo \"$f  $f\"; done | sha256sum -c --quiet
        for f in *; do if tar tzf $f >../../list 2>/dev/null; then tar xzf $f -C ../..; fi; done; cat ../../list
        cmp ../../orbit ../../static";
    let parts = Command::new("sh").args(["-c", script]).current_dir(&dir.0).output().expect("sh");
    let text = [&parts.stdout[..], &parts.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(parts.status.success() && text.lines().any(|line| line == "orbit"), "{text}");
}
