//! What `orbit doctor` says of a main in a unit: whether systemd ends the service when the kernel
//! kills one of its processes for want of memory.

use crate::{boot, orbit};
use serde_json::Value;

#[test]
fn doctor_names_the_policies_that_end_a_service_with_its_helper() {
    let Some(text) = boot("doctor", &[orbit()]) else { return };
    let said = |policy: &str, facility: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(policy)?.strip_prefix(' '));
        let all: Value = serde_json::from_str(line.expect("a line")).expect("JSON");
        let facilities = all["facilities"].as_array().expect("a list").clone();
        let one = facilities.into_iter().find(|one| one["name"] == facility);
        one.unwrap_or_else(|| panic!("no {facility} in {all}"))
    };
    let policy = |of: &str| said(of, "systemd's OOMPolicy");
    assert_eq!(policy("continue")["there"], true, "{}", policy("continue"));
    for of in ["stop", "kill"] {
        let why = policy(of)["why"].as_str().expect("a sentence").to_owned();
        assert!(policy(of)["there"] == false && why.contains(&format!("main-{of}.service")), "{}", policy(of));
    }
}
