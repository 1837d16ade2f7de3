//! A task over a `BTreeMap` of boxes and a `HashMap` of vectors.
use std::collections::{BTreeMap, HashMap};
struct Item {
    id: u64,
    name: String,
}
fn make(id: u64) -> Box<Item> {
    let name = format!("a name {id}"); // SITE
    Box::new(Item { id, name }) // SITE
}
#[inline(never)]
fn total(items: &BTreeMap<u64, Box<Item>>, texts: &HashMap<u64, Vec<u8>>) -> u64 {
    let names = items.values().map(|i| i.id + u64::from(i.name.as_bytes()[2])).sum::<u64>();
    names + texts.get(&3).map_or(0, |text| u64::from(text[1]))
}
fn main() {
    let (mut items, mut texts, mut noise) = (BTreeMap::new(), HashMap::new(), Vec::new());
    for id in 0..10 {
        let text = vec![id as u8; 50]; // SITE
        items.insert(id, make(id)); // SITE
        texts.insert(id, text); // SITE
        noise.push(Box::new(id));
    }
    println!("{} {}", total(&items, &texts), noise.len());
}
