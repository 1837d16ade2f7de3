//! Engines are called by name, one that is not available is rejected with what is missing, and bad
//! limits with the figures.

use crate::area_common;
use area_common::can_have;
use orbit::Kind;
use orbit::area::{Area, Engine};

#[test]
fn names_go_both_ways() {
    for name in ["auto", "track", "compare", "copy", "fork", "share"] {
        assert_eq!(name.parse::<Engine>().unwrap().to_string(), name);
    }
    let error = "psychic".parse::<Engine>().unwrap_err();
    assert_eq!(error.to_string(), "no engine is called \"psychic\"; there are auto, track, compare, copy, fork, share");
}

#[test]
fn what_is_asked_for_is_had_or_refused() {
    for engine in [Engine::Track, Engine::Compare, Engine::Copy, Engine::Share] {
        match Area::builder("asked").limit(1 << 20).engine(engine).build() {
            Ok(area) => assert_eq!(area.engine(), engine),
            Err(error) => {
                assert!(!can_have(engine));
                assert_eq!(error.kind(), Kind::Unsupported);
                assert!(error.to_string().starts_with("area \"asked\": engine"), "{error}");
                assert!(error.to_string().contains("choose"), "{error}");
            }
        }
    }
    assert_eq!(Area::builder("f").limit(1 << 20).engine(Engine::Fork).build().unwrap().engine(), Engine::Fork);
}

#[test]
fn bad_limits_are_refused() {
    let error = Area::builder("tight").size(2 << 20).limit(1 << 20).build().unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("raise the limit"), "{error}");
    assert_eq!(Area::builder("none").limit(0).build().unwrap_err().kind(), Kind::Invalid);
    assert_eq!(Area::builder("all").limit(usize::MAX).build().unwrap_err().kind(), Kind::TooLarge);
    let error = Area::builder("vast").limit(1 << 46).build().unwrap_err();
    assert_eq!(error.kind(), Kind::Full);
    assert!(error.to_string().contains("window"), "{error}");
}
