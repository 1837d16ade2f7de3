//! Queries in the orbit say what they would have said in the program at the moment of the call,
//! also after faults.

use orbit_sqlite::query;

/// Of each round that returned: what was expected, and what came.
fn answers(said: &str) -> Vec<(u64, u64)> {
    let words = said.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let returned = words.filter(|words| words.len() > 5 && words[2] == "expected");
    returned.map(|words| (words[3].parse().expect("a sum"), words[5].parse().expect("a sum"))).collect()
}

#[test]
fn a_query_sees_the_moment_of_its_call() {
    let Some(ended) = query(&["30000", "8"]) else { return };
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{}: {said}{}", ended.status, String::from_utf8_lossy(&ended.stderr));
    let answers = answers(&said);
    assert_eq!(answers.len(), 8, "{said}");
    assert!(answers.iter().all(|(expected, got)| expected == got), "{said}");
    // The program wrote meanwhile.
    assert!(answers[7].0 > answers[0].0, "{said}");
}

#[test]
fn a_fault_costs_one_query() {
    for (fault, says) in [
        ("segv", "SIGSEGV at 0x0 in write_to_null (fault.c:"),
        ("recursion", "recurse_for_ever (fault.c:"),
        ("kill", "killed"),
    ] {
        let Some(ended) = query(&["3000", "4", fault]) else { return };
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{fault}: {said}{}", String::from_utf8_lossy(&ended.stderr));
        assert!(said.contains("round 1 failed: ") && said.contains(says), "{fault}: {said}");
        let answers = answers(&said);
        assert_eq!(answers.len(), 3, "{fault}: {said}");
        assert!(answers.iter().all(|(expected, got)| expected == got), "{fault}: {said}");
        assert!(said.contains("rows 3000 "), "{fault}: {said}");
    }
}
