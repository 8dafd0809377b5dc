//! Pairs of token ids, and maps from them.

use hashbrown::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Two ids as one number that orders like (left, right).
pub type Pair = u64;

/// The pair (left, right).
pub fn pair(left: u32, right: u32) -> Pair {
    (left as u64) << 32 | right as u64
}

/// Its two ids.
pub fn split(pair: Pair) -> (u32, u32) {
    ((pair >> 32) as u32, pair as u32)
}

/// Multiply and fold: both halves of the pair reach the high bits and the low.
pub fn hash(pair: Pair) -> u64 {
    let wide = (pair ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93;
    (wide >> 64) as u64 ^ wide as u64
}

/// Hashes pairs, and nothing else.
#[derive(Default)]
pub struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("pairs are hashed as u64");
    }
    fn write_u64(&mut self, pair: u64) {
        self.0 = hash(pair);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map from pairs.
pub type PairMap<V> = HashMap<Pair, V, BuildHasherDefault<PairHasher>>;

/// A set of pairs.
pub type PairSet = HashSet<Pair, BuildHasherDefault<PairHasher>>;
