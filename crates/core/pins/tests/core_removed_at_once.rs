//! A module that does not come back from a call is removed at once, long before its deadline.

use orbit_rmk::{Context, Event, Filter, Kind, Module, ModuleOptions};
use std::time::{Duration, Instant};

struct Endless;

impl Module for Endless {
    const NAME: &'static str = "endless";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(_settings: &[u8]) -> Endless {
        Endless
    }
    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(2)));
    }
    fn event(&mut self, _context: &mut Context, _event: &Event) {
        loop {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn a_looping_module_is_removed_at_once() {
    let core = orbit_pins::core().expect("a core");
    let options = ModuleOptions { deadline: Duration::from_secs(45), ..ModuleOptions::default() };
    let module = core.install::<Endless>(options).expect("the module");
    let pid = module.status().pid;
    let start = Instant::now();
    while module.status().handled == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", module.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    module.remove();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "removed after {took:?}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists(), "its process has ended");
    assert!(core.pins().iter().all(|pin| pin.users.is_empty()), "its pin is released");
}
