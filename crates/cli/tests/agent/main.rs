//! `orbit agent` on real processes, some of which hang: tests that share one process, since each
//! starts commands of its own.

#[path = "../guard_common/mod.rs"]
mod guard_common;

mod acts_on_what_is_selected;
mod budgets_and_sureness;
mod exports;
mod kubernetes;
mod new_groups;
mod other_nodes;
mod otlp;
mod packaging;
mod reloads;
mod rights_are_named;
mod running;
mod status_page;
mod threads_without_rights;
