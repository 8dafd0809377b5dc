//! A short run of the fuzz targets: the same inputs everywhere, and those that are kept.

use crate::random::Random;
use std::path::Path;

/// Bytes of all kinds: even ones, few different ones, ASCII.
fn inputs(seed: u64, count: usize, most: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random(seed);
    (0..count).map(move |number| {
        let mask = [0xff, 0xff, 0x3f, 0x0f][number % 4];
        (0..random.below(most + 1)).map(|_| random.below(256) as u8 & mask).collect()
    })
}

/// Files of `fuzz/seeds/`.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut paths: Vec<_> =
        folder.read_dir().expect("the folder of kept inputs").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| std::fs::read(path).expect("a kept input")).collect()
}

#[test]
fn the_encoder_is_its_definition_on_random_and_kept_inputs() {
    kept("encode").iter().for_each(|data| super::encode(data));
    inputs(1, 700, 400).for_each(|data| super::encode(&data));
}

#[test]
fn the_scanners_are_their_regexes_on_random_and_kept_inputs() {
    kept("pretoken").iter().for_each(|data| super::pretoken(data));
    inputs(2, 2000, 200).for_each(|data| super::pretoken(&data));
}
