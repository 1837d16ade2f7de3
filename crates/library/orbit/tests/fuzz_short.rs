//! The fuzz targets' bodies on random and mutated inputs, a few seconds each, without a fuzzer;
//! `fuzz/` has the targets for cargo-fuzz. `ORBIT_FUZZ_SECONDS` (3) sets the time for each; a slow
//! machine takes longer, for a hundred inputs at least.

mod common;

use std::time::{Duration, Instant};

use common::{Random, seed};

fn run(target: fn(&[u8]), first: &[Vec<u8>]) {
    let mut random = Random(seed());
    let seconds = std::env::var("ORBIT_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut corpus = first.to_vec();
    let mut runs = 0u64;
    while runs < 100 || Instant::now() < until {
        let mut input = match corpus.is_empty() || random.below(4) == 0 {
            true => (0..random.below(400)).map(|_| random.next() as u8).collect(),
            false => corpus[random.below(corpus.len())].clone(),
        };
        for _ in 0..random.below(6) {
            match (random.below(4), input.len()) {
                (0, len) => input.insert(random.below(len + 1), random.next() as u8),
                (1, 1..) => {
                    let at = random.below(input.len());
                    input.remove(at);
                }
                (2, 1..) => {
                    let at = random.below(input.len());
                    input[at] ^= 1 << random.below(8);
                }
                (_, 1..) => {
                    let at = random.below(input.len());
                    input[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
                }
                _ => {}
            }
        }
        target(&input);
        runs += 1;
        if corpus.len() < 200 {
            corpus.push(input);
        } else {
            let at = random.below(200);
            corpus[at] = input;
        }
    }
    println!("{runs} runs");
}

#[test]
fn update_reader() {
    let mut update = orbit::Update::new();
    update.data(b"some data").modify(0x1000, &[1, 2, 3, 4]).modify_if(0x2000, &[0; 8], &[1; 8]);
    let mut bytes = Vec::new();
    update.encode(&mut bytes).expect("encode");
    run(orbit::fuzzing::update_reader, &[bytes]);
}

#[test]
fn queue() {
    run(orbit::fuzzing::queue, &[]);
}

#[test]
fn log() {
    run(orbit::fuzzing::log, &[]);
}
