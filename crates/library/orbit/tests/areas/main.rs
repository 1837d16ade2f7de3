//! Areas without orbits: tests that share one process, since each has areas of its own. Those that
//! set what holds for the whole process are programs of their own.

#[path = "../area_common/mod.rs"]
mod area_common;

mod area_adopt;
mod area_announced_writes;
mod area_bad_pointers;
mod area_costs;
mod area_destroyed_beside_users;
mod area_engine_names;
mod area_failed_call_loses_nothing;
mod area_free_gives_back;
mod area_grows;
mod area_hot_pages;
mod area_no_lost_write;
mod area_owed_to_each_orbit;
mod area_sparse;
