//! The watcher on living programs: what it senses, reports, and leaves alone. One binary, a module
//! for each behaviour.

mod common;

mod another_program;
mod answers_owed;
mod begun_anew;
mod children_not_asked_for;
mod credentials;
mod ends_in_its_time;
mod first_thread_ended;
mod hand_to_hand;
mod held_over_fork;
mod held_up_elsewhere;
mod idle_threads_cost;
mod injected_hangs;
mod judged_live;
mod languages;
mod languages_python;
mod left_alone;
mod locks_of_runtimes;
mod main_loop_left;
mod many_at_once;
mod mutex_refused;
mod processes_take_turns;
mod readers_reported_together;
mod readers_starved;
mod recovered;
mod reported_once;
mod restless_threads;
mod runtimes_asked;
mod sections;
mod sections_left_meanwhile;
mod sections_reported_once;
mod sections_slow_exit;
mod sections_two_copies;
mod slow_machine;
mod standstill;
mod thousands_of_threads;
mod threads_that_come_and_go;
mod times_reported;
mod usual_waits_for_each_other;
mod waits_for_work;
mod waits_judged;
