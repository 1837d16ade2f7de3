//! A function that a program has changed in memory is not probed; of each process that is said
//! once.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::Event;
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn reported_of_each_process_once() {
    let dir = Dir::new("patched");
    let Some(program) = dir.build("patched", include_str!("c/patched.c")) else { return };
    let programs = [(); 2].map(|()| {
        let mut child =
            Command::new(&program).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("that it was changed");
        Program(child)
    });
    let section = Named { name: "requests".into(), function: "request".parse().expect("a function") };
    let mut watcher = Watcher::of(programs[0].pid(), Settings { sections: vec![section], ..Settings::default() });
    watcher.detection.add(programs[1].pid()).expect("the program");
    let troubles = |events: &[Event]| -> Vec<String> {
        let text = |e: &Event| match e {
            Event::Trouble { text, .. } => Some(text.clone()),
            _ => None,
        };
        events.iter().filter_map(text).collect()
    };
    watcher.until("a word on each", |all| {
        troubles(all).len() >= 2 || troubles(all).iter().any(|t| t.contains("sections by name are"))
    });
    watcher.run(Duration::from_secs(1));
    let reported = troubles(&watcher.events);
    if reported.iter().any(|t| t.contains("sections by name are")) {
        println!("SKIP: needs uprobes ({reported:?})");
        return;
    }
    assert_eq!(reported.len(), 2, "{reported:#?}");
    for program in &programs {
        let of = format!("function request of section requests in process {} is not probed", program.pid());
        let one = reported.iter().filter(|t| t.contains(&of) && t.contains("not that of its file")).count();
        assert_eq!(one, 1, "{reported:#?}");
    }
}
