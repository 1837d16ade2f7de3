//! How `orbit watch` starts, restarts and ends programs: tests that share one process, since each
//! starts commands of its own.

#[path = "../guard_common/mod.rs"]
mod guard_common;

mod guard_acts_on_certain_only;
mod guard_begins_or_not;
mod guard_leaves_pages;
mod guard_many_starts;
mod guard_passes_status;
mod guard_reaps_orphans;
mod guard_restart_bounded;
mod guard_restart_can_be_ended;
mod guard_spares_guesses;
mod guard_waits_for_no_reader;
