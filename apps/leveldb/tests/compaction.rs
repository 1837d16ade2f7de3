//! Compactions by the orbit give the same contents as LevelDB's own, whatever happens to the orbit.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use orbit_leveldb::{Database, Library, wait_until};

const WRITES: u32 = 60_000;
/// Enough for a compaction, too few for LevelDB to make writers wait for its end.
const FEW: u32 = 6_000;

fn number(said: &HashMap<String, String>, name: &str) -> u64 {
    said.get(name).unwrap_or_else(|| panic!("no {name}: {said:?}")).parse().expect("a number")
}

/// The hash of the contents that a stock LevelDB has after the writes of this seed.
fn stock_hash(seed: u32, writes: u32) -> Option<String> {
    let database = Database::new()?;
    Some(database.run(Library::Stock, &format!("writes {seed} {writes} none 0"))["hash"].clone())
}

#[test]
fn contents_are_those_of_stock() {
    for seed in 1..=3 {
        let Some(stock) = stock_hash(seed, WRITES) else { return };
        let database = Database::new().expect("LevelDB is there");
        let said = database.run(Library::Orbit, &format!("writes {seed} {WRITES} none 0"));
        assert_eq!(said["hash"], stock, "seed {seed}");
        assert!(number(&said, "compactions") > 5, "{said:?}");
        assert_eq!((number(&said, "failures"), number(&said, "own")), (0, 0), "{said:?}\n{}", database.log());
        assert!(number(&said, "minor") > 20, "memtables too: {said:?}");
        let minor = (number(&said, "minor_failures"), number(&said, "minor_own"));
        assert_eq!(minor, (0, 0), "{said:?}\n{}", database.log());
        // Reopened by stock, which verifies every block.
        assert_eq!(database.run(Library::Stock, "check")["hash"], stock, "seed {seed}");
    }
}

/// The fault, how many tries it hits, and what LevelDB's log says of it.
fn fault_is_survived(fault: &str, times: u32, event: &str) {
    let Some(stock) = stock_hash(7, WRITES) else { return };
    let database = Database::new().expect("LevelDB is there");
    let said = database.run(Library::Orbit, &format!("writes 7 {WRITES} {fault} {times}"));
    let log = database.log();
    assert_eq!(said["hash"], stock, "{fault}");
    assert!(log.contains(event), "{fault}: not in the log: {event}\n{log}");
    // With the short deadline of this one, a loaded machine may add others.
    let failures = number(&said, "failures");
    assert!(failures == u64::from(times) || (fault == "hang" && failures > u64::from(times)), "{said:?}\n{log}");
    assert!(number(&said, "compactions") > 5, "the next process compacts: {said:?}");
    assert_eq!(database.run(Library::Stock, "check")["hash"], stock, "{fault}: reopened by stock");
}

#[test]
fn null_write() {
    fault_is_survived("segv", 1, "try 1 of 3: crashed: SIGSEGV at 0x0 in WriteToNull (fault.cc:");
}

#[test]
fn endless_loop() {
    fault_is_survived("hang", 1, "try 1 of 3: not done at its deadline");
}

#[test]
fn memory_beyond_the_limit() {
    fault_is_survived("memory", 1, "try 1 of 3: out of memory");
}

#[test]
fn endless_recursion() {
    fault_is_survived("recursion", 1, "in RecurseForEver (fault.cc:");
}

#[test]
fn results_that_are_not_true() {
    fault_is_survived("wrong", 1, "the table is not what was reported");
}

#[test]
fn kill_9() {
    fault_is_survived("kill", 2, "try 2 of 3: killed by signal 9");
}

#[test]
fn after_three_tries_leveldb_compacts_in_its_own_way() {
    let Some(stock) = stock_hash(9, WRITES) else { return };
    let database = Database::new().expect("LevelDB is there");
    let said = database.run(Library::Orbit, &format!("writes 9 {WRITES} segv 6"));
    assert_eq!((number(&said, "failures"), number(&said, "own")), (6, 2), "{said:?}\n{}", database.log());
    assert!(database.log().contains("try 3 of 3: crashed"), "{}", database.log());
    assert_eq!(said["hash"], stock);
    assert_eq!(database.run(Library::Stock, "check")["hash"], stock);
}

/// The same while a memtable is written.
fn fault_of_a_memtable_is_survived(fault: &str, times: u32, event: &str) {
    let Some(stock) = stock_hash(8, WRITES) else { return };
    let database = Database::new().expect("LevelDB is there");
    let said = database.run(Library::Orbit, &format!("writes 8 {WRITES} minor-{fault} {times}"));
    let log = database.log();
    assert_eq!(said["hash"], stock, "{fault}");
    assert!(log.contains(event), "{fault}: not in the log: {event}\n{log}");
    let failures = number(&said, "minor_failures");
    assert!(failures == u64::from(times) || (fault == "hang" && failures > u64::from(times)), "{said:?}\n{log}");
    assert_eq!(number(&said, "minor_own"), u64::from(times / 3), "{said:?}\n{log}");
    assert!(number(&said, "minor") > 20, "the next process writes memtables: {said:?}");
    assert_eq!(database.run(Library::Stock, "check")["hash"], stock, "{fault}: reopened by stock");
}

#[test]
fn a_memtable_and_a_null_write() {
    fault_of_a_memtable_is_survived(
        "segv",
        1,
        "memtable, try 1 of 3: crashed: SIGSEGV at 0x0 in WriteToNull (fault.cc:",
    );
}

#[test]
fn a_memtable_and_an_endless_loop() {
    fault_of_a_memtable_is_survived("hang", 1, "memtable, try 1 of 3: not done at its deadline");
}

#[test]
fn a_memtable_and_memory_beyond_the_limit() {
    fault_of_a_memtable_is_survived("memory", 1, "memtable, try 1 of 3: out of memory");
}

#[test]
fn a_memtable_and_endless_recursion() {
    fault_of_a_memtable_is_survived("recursion", 1, "in RecurseForEver (fault.cc:");
}

#[test]
fn a_memtable_and_results_that_are_not_true() {
    fault_of_a_memtable_is_survived("wrong", 1, "memtable, try 1 of 3: the last key is another one");
}

#[test]
fn a_memtable_and_kill_9() {
    fault_of_a_memtable_is_survived("kill", 2, "memtable, try 2 of 3: killed by signal 9");
}

#[test]
fn after_three_tries_leveldb_writes_the_memtable_in_its_own_way() {
    fault_of_a_memtable_is_survived("segv", 3, "memtable, try 3 of 3: crashed");
}

/// While the orbit hangs, until its deadline of two seconds, memtables are written out.
#[test]
fn memtables_are_written_while_the_orbit_compacts() {
    let Some(database) = Database::new() else { return };
    let said = database.run(Library::Orbit, &format!("writes 5 {WRITES} hang 1"));
    let log = database.log();
    let (_, since) = log.split_once("files in the orbit").expect("a compaction");
    let (meanwhile, _) = since.split_once("not done at its deadline").expect("the deadline");
    assert!(meanwhile.contains("bytes, by the orbit"), "no table of level 0 while it hung:\n{meanwhile}");
    assert!(number(&said, "memtables") > 0, "{said:?}");
}

#[test]
fn closed_while_the_orbit_compacts() {
    let Some(stock) = stock_hash(3, FEW) else { return };
    let database = Database::new().expect("LevelDB is there");
    database.run(Library::Orbit, &format!("writes 3 {FEW} close 1000"));
    assert_eq!(database.run(Library::Stock, "check")["hash"], stock);
}

/// kill -9 of the program: the orbit ends too, and a stock LevelDB opens what is there.
#[test]
fn killed_while_the_orbit_compacts() {
    let Some(stock) = stock_hash(3, FEW) else { return };
    let database = Database::new().expect("LevelDB is there");
    let mut program = database.start(Library::Orbit, &format!("writes 3 {FEW} stay 1000"));
    let mut lines = BufReader::new(program.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let orbit = lines.find_map(|line| line.strip_prefix("orbit ").map(str::to_owned));
    program.kill().expect("it is killed");
    program.wait().expect("it has ended");
    let orbit = orbit.expect("its orbit's pid");
    wait_until("the orbit has ended", || !Path::new(&format!("/proc/{orbit}")).exists());
    assert_eq!(database.run(Library::Stock, "check")["hash"], stock);
}
