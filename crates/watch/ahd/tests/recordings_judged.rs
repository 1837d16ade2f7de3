//! Every recording gives exactly the verdicts that its `.expect` file lists, and no healthy one a
//! verdict above a guess.
//!
//! A line of `.expect` is `RULE SURE SECONDS`: when that rule first was that sure, after the mark
//! (`hang-*`) or the start (`healthy-*`); `silent` if there was none. `ORBIT_BLESS=1` writes the
//! files anew, to be read over before they are committed.

use orbit_ahd::facts::Record;
use orbit_ahd::{Limits, replay};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Seconds before a program's own mark at which a report still counts: it marks the moment a little
/// late.
const EARLY: f64 = 0.2;

fn recordings() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let files = std::fs::read_dir(dir).expect("recordings").map(|e| e.expect("an entry").path());
    let mut all: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "gz")).collect();
    all.sort();
    all
}

fn name(path: &Path) -> String {
    let name = path.file_name().expect("a name").to_string_lossy();
    name.trim_end_matches(".jsonl.gz").to_owned()
}

/// Rule, how sure, when.
type Found = (String, String, f64);

fn judged(path: &Path) -> (bool, Vec<Found>) {
    let records = replay::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mark = records.iter().rev().find_map(|r| if let Record::Mark { t } = r { Some(*t) } else { None });
    let mut first: BTreeMap<(String, String), f64> = BTreeMap::new();
    replay::replay(&records, &Limits::default(), &mut |scene, verdicts| {
        for v in verdicts {
            first.entry((v.key.rule().to_owned(), v.sure.to_string())).or_insert(scene.facts.now - mark.unwrap_or(0.0));
        }
    });
    let mut found: Vec<Found> = first.into_iter().map(|((rule, sure), t)| (rule, sure, t)).collect();
    found.sort_by(|a, b| a.2.total_cmp(&b.2));
    (mark.is_some(), found)
}

#[test]
fn recordings_give_the_expected_verdicts() {
    let bless = std::env::var_os("ORBIT_BLESS").is_some();
    let (mut hangs, mut found, mut sure, mut healthy, mut guesses) = (0, 0, 0, 0, 0);
    let mut wrong = Vec::new();
    for path in recordings() {
        let name = name(&path);
        let (is_hang, verdicts) = judged(&path);
        let mut text: String = verdicts.iter().map(|(rule, sure, t)| format!("{rule} {sure} {t:.1}\n")).collect();
        if text.is_empty() {
            text = "silent\n".into();
        }
        let expect = path.with_file_name(format!("{name}.expect"));
        if bless {
            std::fs::write(&expect, &text).expect("an expect file");
        }
        let expected = std::fs::read_to_string(&expect).unwrap_or_default();
        if expected != text {
            wrong.push(format!("{name}: expected\n{expected}got\n{text}"));
        }
        let early = verdicts.iter().any(|(_, sure, t)| is_hang && *t < -EARLY && sure != "guess");
        let above = verdicts.iter().any(|(_, sure, _)| sure != "guess");
        if early || !is_hang && above {
            wrong.push(format!("{name}: a false alarm above a guess\n{text}"));
        }
        if is_hang {
            hangs += 1;
            found += usize::from(verdicts.iter().any(|(_, _, t)| *t >= 0.0));
            sure += usize::from(above);
        } else {
            healthy += 1;
            guesses += usize::from(!verdicts.is_empty());
        }
    }
    println!(
        "{found} of {hangs} hangs found, {sure} above a guess; {guesses} of {healthy} healthy programs with a guess"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found * 10 >= hangs * 8 && guesses * 10 <= healthy, "{found} of {hangs}, {guesses} of {healthy}");
}
