//! Two modules on one pin do not disturb each other: the paper's example, both on the context
//! switch (section 3).

mod common;
use common::{Guest, event, kernel_programs_or_skip, until};
use orbit_rmk::{Filter, Kind};

#[test]
fn os_and_application_hang_detection_share_the_context_switch() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let (os, app) = (core.client("os-hang"), core.client("app-hang"));
    let (one, two) = (Guest::shell("while :; do sleep 0.002; done"), Guest::shell("while :; do sleep 0.002; done"));
    os.use_pin("P_SCHL").expect("P_SCHL");
    let all = os.subscr_event("P_SCHL", Kind::ContextSwitch, Filter::everyone().count_only()).expect("all");
    until("the first module counts", || os.counts(all).expect("counts").passed > 20);

    // The second comes with a filter of its own, and takes nothing from the first.
    app.use_pin("P_SCHL").expect("P_SCHL");
    core.guard(one.pid()).expect("guarded");
    let own = app.subscr_event("P_SCHL", Kind::ContextSwitch, Filter::guarded().without_children()).expect("own");
    let before = os.counts(all).expect("counts").passed;
    let seen = event(&app, "a switch of the guarded program", |_| true);
    assert!(seen.subscription == own && [seen.pid, seen.values[0] as u32].contains(&one.pid()), "{seen:?}");
    until("the first module continues", || os.counts(all).expect("counts").passed > before + 20);
    assert_eq!(os.counts(all).expect("counts").due, 0, "the second module's wish is not the first one's");

    // What is guarded changes while they run.
    core.guard(two.pid()).expect("guarded");
    event(&app, "a switch of the other program", |event| [event.pid, event.values[0] as u32].contains(&two.pid()));
    core.unguard(one.pid());
    let since = orbit_rmk::now();
    // What came before may be on its way yet.
    let later = event(&app, "a switch of what is still guarded", |event| event.time > since);
    assert!([later.pid, later.values[0] as u32].contains(&two.pid()), "{later:?}");

    // The second goes; the first does not notice.
    drop(app);
    let before = os.counts(all).expect("counts").passed;
    until("the first module continues alone", || os.counts(all).expect("counts").passed > before + 20);
}

#[test]
fn a_module_that_does_not_read_takes_no_room_from_another() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let (deaf, alert) = (core.client("deaf"), core.client("alert"));
    let guest = Guest::shell("while :; do sleep 0.001; done");
    for module in [&deaf, &alert] {
        module.use_pin("P_SCHL").expect("P_SCHL");
    }
    let filter = || Filter::pids(&[guest.pid()]);
    let ignored = deaf.subscr_event("P_SCHL", Kind::ContextSwitch, filter().queue(8)).expect("deaf");
    let read = alert.subscr_event("P_SCHL", Kind::ContextSwitch, filter()).expect("alert");
    let mut events = Vec::new();
    until("the deaf module has lost events", || {
        alert.wait(1000, std::time::Duration::from_millis(10), &mut events);
        deaf.counts(ignored).expect("counts").lost > 20
    });
    let counts = deaf.counts(ignored).expect("counts");
    assert!(counts.waiting >= 8 && counts.delivered == 0, "{counts:?}");
    assert!(events.len() > 20 && alert.counts(read).expect("counts").lost == 0, "{}", events.len());
}
