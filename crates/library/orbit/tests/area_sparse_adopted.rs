//! An adopted region of which little was ever touched: calls walk what was touched alone, and no
//! write is lost.

use std::collections::{BTreeMap, BTreeSet};

use orbit::area::{OwedSet, PageRuns, fault};
use orbit::units::{Page, Pages};
use orbit::{Area, Engine};
use orbit_linux::map::{self, Mapping};
use orbit_testing::Random;

const PAGE: usize = 4096;

/// Writable address space, in small pages.
fn region(bytes: usize) -> Mapping {
    let region = Mapping::reserve(bytes).expect("address space");
    // SAFETY: the mapping just made; a kernel without huge pages rejects the advice.
    unsafe {
        map::protect(region.addr(), bytes, libc::PROT_READ | libc::PROT_WRITE).expect("writable");
        let _ = map::advise(region.addr(), bytes, libc::MADV_NOHUGEPAGE);
    }
    region
}

fn adopt(region: &Mapping, engine: Engine) -> Area {
    let builder = Area::builder("sparse").engine(engine);
    // SAFETY: the mapping lives as long as the area is used.
    unsafe { builder.adopt(region.as_ptr(), region.len()) }.expect("adopt")
}

fn write(region: &Mapping, page: usize, value: u64) {
    // SAFETY: inside the mapping, which this test alone uses.
    unsafe { region.as_ptr().add(page * PAGE).cast::<u64>().write_volatile(value) };
}

/// Kilobytes of page tables of this process.
fn page_tables() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmPTE:")).expect("VmPTE");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

fn can_track() -> bool {
    let can = Area::builder("probe").engine(Engine::Track).build().is_ok();
    if !can {
        eprintln!("SKIP: needs userfaultfd with asynchronous write-protection and PAGEMAP_SCAN");
    }
    can
}

#[test]
fn what_was_never_touched_is_neither_sent_nor_given_page_tables() {
    if !can_track() {
        return;
    }
    let region = region(8 << 30);
    for page in 0..1024 {
        write(&region, (1 << 20) + page, 1);
    }
    let area = adopt(&region, Engine::Track);
    let owed = area.attach().expect("attach");
    let before = page_tables();
    for round in 0..4 {
        let mut sent = PageRuns::new();
        area.snapshot_pages(&owed, &mut sent).expect("snapshot");
        let expected = if round == 0 { 1024 } else { 0 };
        assert_eq!(sent.pages().get(), expected, "round {round}");
    }
    // All of the region would take 16 MiB.
    assert!(page_tables() < before + 2048, "{} KiB of page tables, {before} before", page_tables());
    write(&region, 7, 1);
    let mut sent = PageRuns::new();
    area.snapshot_pages(&owed, &mut sent).expect("snapshot");
    assert_eq!(sent.iter().collect::<Vec<_>>(), [(Page::new(7), Pages::ONE)]);
}

/// What an orbit has: the first word of each page that is not zero.
struct Copy {
    owed: std::sync::Arc<OwedSet>,
    words: BTreeMap<usize, u64>,
}

/// Random histories of writes, reads, pages released, announced writes, failing system calls and
/// snapshots of two orbits: after each snapshot the orbit has what main has.
fn history(seed: u64, steps: usize) {
    let pages = 40 * 512 + 77;
    let region = region((pages + 100) * PAGE);
    let mut random = Random::new(seed);
    let mut main: BTreeMap<usize, u64> = BTreeMap::new();
    for n in 0..random.index(600) {
        let page = random.index(3 * 512);
        write(&region, page, n as u64 + 1);
        main.insert(page, n as u64 + 1);
    }
    // SAFETY: as in `adopt`; it begins at some page of a chunk.
    let skipped = random.index(100);
    let at = region.as_ptr().wrapping_add(skipped * PAGE);
    main = main.into_iter().filter(|(page, _)| *page >= skipped).map(|(page, word)| (page - skipped, word)).collect();
    // SAFETY: the mapping lives as long as the area is used.
    let area = unsafe { Area::builder("sparse").engine(Engine::Track).adopt(at, pages * PAGE) }.expect("adopt");
    let copy = || Copy { owed: area.attach().expect("attach"), words: BTreeMap::new() };
    let mut copies = vec![copy()];
    let mut touched: BTreeSet<usize> = main.keys().copied().collect();
    for step in 0..steps {
        let page = (random.index(40) * 512 + random.index(3) * random.index(200)).min(pages - 1);
        match random.index(12) {
            0..=4 => {
                let word = (seed << 20) + step as u64 + 1;
                write(&region, skipped + page, word);
                main.insert(page, word);
                touched.insert(page);
            }
            5 => {
                // SAFETY: inside the mapping.
                let seen = unsafe { at.add(page * PAGE).cast::<u64>().read_volatile() };
                assert_eq!(seen, main.get(&page).copied().unwrap_or(0), "seed {seed}, step {step}");
                touched.insert(page);
            }
            6 => {
                let count = (1 + random.index(700)).min(pages - page);
                // SAFETY: pages of the mapping that nobody refers to.
                let given_back =
                    unsafe { libc::madvise(at.add(page * PAGE).cast(), count * PAGE, libc::MADV_DONTNEED) };
                assert_eq!(given_back, 0);
                main.retain(|at, _| !(page..page + count).contains(at));
            }
            7 => {
                area.will_write(at.wrapping_add(page * PAGE), PAGE).expect("announce");
                touched.insert(page);
            }
            8 => {
                let copy = &copies[random.index(copies.len())];
                let counted = area.peek_pages(&copy.owed, Pages::new(1 + random.index(300))).expect("peek");
                assert!(counted.get() <= 300);
            }
            9 if copies.len() < 3 => copies.push(copy()),
            10 => {
                let copy = &copies[random.index(copies.len())];
                fault::set_step(1 + random.index(900));
                fault::fail_after(random.index(6) as u32);
                let mut sent = PageRuns::new();
                if area.snapshot_pages(&copy.owed, &mut sent).is_ok() {
                    // As a caller does whose pages do not arrive.
                    copy.owed.owe(&sent);
                }
                fault::disarm();
                fault::set_step(0);
            }
            _ => {
                let at = random.index(copies.len());
                let copy = &mut copies[at];
                let mut sent = PageRuns::new();
                area.snapshot_pages(&copy.owed, &mut sent).expect("snapshot");
                for page in sent.iter().flat_map(|(first, count)| first.run(count)).map(Page::get) {
                    match main.get(&page) {
                        Some(word) => copy.words.insert(page, *word),
                        None => copy.words.remove(&page),
                    };
                }
                assert!(copy.words == main, "seed {seed}, step {step}: orbit {at} lacks what main wrote");
            }
        }
    }
    assert!(!touched.is_empty());
}

#[test]
fn no_write_is_lost_in_random_histories() {
    if !can_track() {
        return;
    }
    let full = std::env::var_os("ORBIT_TEST_FULL").is_some();
    for seed in 1..=if full { 400 } else { 12 } {
        history(seed, 600);
    }
}

#[test]
fn writers_beside_snapshots_lose_nothing() {
    if !can_track() {
        return;
    }
    let region = region(64 << 20);
    let area = adopt(&region, Engine::Track);
    let owed = area.attach().expect("attach");
    let pages = region.len() / PAGE;
    let mut found = BTreeSet::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Each page once, far from the one before.
            for n in 0..pages {
                write(&region, n * 7919 % pages, 1);
            }
        });
        while !writer.is_finished() {
            let mut sent = PageRuns::new();
            area.snapshot_pages(&owed, &mut sent).expect("snapshot");
            found.extend(sent.iter().flat_map(|(first, count)| first.run(count)).map(Page::get));
        }
    });
    let mut sent = PageRuns::new();
    area.snapshot_pages(&owed, &mut sent).expect("snapshot");
    found.extend(sent.iter().flat_map(|(first, count)| first.run(count)).map(Page::get));
    assert_eq!(found.len(), pages, "a page that was written once was never reported");
}
