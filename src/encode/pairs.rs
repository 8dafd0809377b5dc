//! Two neighbouring symbols -> the symbol that merging them makes.
//!
//! One entry per token is enough, although several pairs may spell one token: inside the bytes of a token, merging
//! takes the same steps whatever stands around them, as long as no merge crosses its border. So of all pairs that
//! spell it, only the one that is the last step of the token's own encoding can ever stand there.
//!
//! An entry is found in one step: a small table of displacements, searched for once when the vocabulary is
//! loaded, sends every key to a bucket of four with room for it, and a bucket is half a cache line. Probing instead
//! would be a branch that no processor can predict.

use super::isa::Isa;

/// Symbols are numbers below this; it stands for "no symbol". (One more would make two of them the key of an empty entry.)
pub const NOBODY: u32 = (1 << KEY_BITS) - 2;
const KEY_BITS: u32 = 21;
/// Bits of an entry below its key.
pub const VALUE_BITS: u32 = 22;

const EMPTY: u64 = u64::MAX;

#[inline(always)]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << KEY_BITS | u64::from(right)
}

/// The key of an entry.
#[inline(always)]
pub fn key_in(entry: u64) -> u64 {
    entry >> VALUE_BITS
}

/// The symbol of an entry.
#[inline(always)]
pub fn symbol_in(entry: u64) -> u32 {
    entry as u32 & ((1 << VALUE_BITS) - 1)
}

#[inline(always)]
fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Bucket([u64; 4]);

/// The finished table.
pub struct Pairs {
    buckets: Vec<Bucket>,
    displacements: Vec<u32>,
    shift: u32,
}

impl Pairs {
    /// A table of (left, right, merged), each pair once.
    pub fn new(pairs: &[(u32, u32, u32)]) -> Pairs {
        let mut buckets = (pairs.len() * 10 / 36).next_power_of_two().max(16);
        loop {
            if let Some(table) = Pairs::with_buckets(pairs, buckets) {
                return table;
            }
            buckets *= 2;
        }
    }

    /// None if for some group of keys no displacement leads to buckets with room.
    fn with_buckets(pairs: &[(u32, u32, u32)], buckets: usize) -> Option<Pairs> {
        let groups = (pairs.len() / 10).next_power_of_two().max(16);
        let shift = 64 - buckets.trailing_zeros();
        // Keys by group, the largest group first: it needs the most room.
        let mut entries: Vec<(u32, u64, u64)> = pairs
            .iter()
            .map(|&(left, right, merged)| {
                let key = key(left, right);
                (group_of(hash(key), groups) as u32, hash(key), key << VALUE_BITS | u64::from(merged))
            })
            .collect();
        entries.sort_unstable();
        let mut by_group: Vec<&[(u32, u64, u64)]> = entries.chunk_by(|a, b| a.0 == b.0).collect();
        by_group.sort_by_key(|group| std::cmp::Reverse(group.len()));

        let mut table = vec![Bucket([EMPTY; 4]); buckets];
        let mut fill = vec![0u8; buckets];
        let mut displacements = vec![0; groups];
        for group in by_group {
            let bucket_of = |hash: u64, displacement: u32| (hash >> shift) as usize ^ displacement as usize;
            let displacement = (0..buckets as u32).find(|&displacement| {
                let mut taken = 0;
                for &(_, hash, _) in group {
                    let fill = &mut fill[bucket_of(hash, displacement)];
                    if *fill == 4 {
                        break;
                    }
                    *fill += 1;
                    taken += 1;
                }
                for &(_, hash, _) in &group[..taken] {
                    fill[bucket_of(hash, displacement)] -= 1;
                }
                taken == group.len()
            })?;
            displacements[group[0].0 as usize] = displacement;
            for &(_, hash, entry) in group {
                let bucket = bucket_of(hash, displacement);
                table[bucket].0[usize::from(fill[bucket])] = entry;
                fill[bucket] += 1;
            }
        }
        Some(Pairs { buckets: table, displacements, shift })
    }

    /// What merging `left` and `right` makes, or [`NOBODY`]; either may be [`NOBODY`].
    #[inline(always)]
    pub fn get<I: Isa>(&self, isa: I, left: u32, right: u32) -> u32 {
        let key = key(left, right);
        let hash = hash(key);
        // SAFETY: a group is taken modulo the number of displacements. The top bits of a hash are below the number of
        // buckets, a power of two, and so is each displacement, and with them their exclusive or.
        unsafe {
            let displacement = *self.displacements.get_unchecked(group_of(hash, self.displacements.len()));
            let bucket = (hash >> self.shift) as usize ^ displacement as usize;
            // The border of a word must not cost a cache miss: any bucket will do, as none has such a key.
            let bucket = std::hint::select_unpredictable(left == NOBODY || right == NOBODY, 0, bucket);
            isa.find(&self.buckets.get_unchecked(bucket).0, key)
        }
    }
}

/// From other bits of the hash than the bucket, which are its top ones.
#[inline(always)]
fn group_of(hash: u64, groups: usize) -> usize {
    (hash >> 26) as usize & (groups - 1)
}

/// A table that grows, for building a vocabulary.
pub struct GrowingPairs {
    entries: Vec<u64>,
    shift: u32,
}

impl GrowingPairs {
    /// An empty table with room for `most` pairs.
    pub fn new(most: usize) -> GrowingPairs {
        let room = (most * 2).next_power_of_two().max(16);
        GrowingPairs { entries: vec![EMPTY; room], shift: 64 - room.trailing_zeros() }
    }

    /// Adds a pair that is not there yet.
    pub fn insert(&mut self, left: u32, right: u32, merged: u32) {
        let mut at = self.place(left, right);
        while self.entries[at] != EMPTY {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = key(left, right) << VALUE_BITS | u64::from(merged);
    }

    /// What merging makes, or [`NOBODY`].
    #[inline]
    pub fn get(&self, left: u32, right: u32) -> u32 {
        let mut at = self.place(left, right);
        loop {
            let entry = self.entries[at];
            if entry == EMPTY {
                return NOBODY;
            }
            if key_in(entry) == key(left, right) {
                return symbol_in(entry);
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    fn place(&self, left: u32, right: u32) -> usize {
        (hash(key(left, right)) >> self.shift) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Portable;
    use super::*;

    #[test]
    fn every_pair_is_found_and_no_other() {
        for n in [0, 1, 5, 1000, 29_491, 40_000] {
            let pairs: Vec<_> = (0..n).map(|i: u32| (i * 7 % 2_000_003, i * 13 % 1_999_993, i)).collect();
            let table = Pairs::new(&pairs);
            for &(left, right, merged) in &pairs {
                assert_eq!(table.get(Portable, left, right), merged);
                assert_eq!(table.get(Portable, right + 1, left), NOBODY);
            }
            assert_eq!(table.get(Portable, NOBODY, 3), NOBODY);
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = super::super::isa::Avx2::detect() {
                assert!(pairs.iter().all(|&(left, right, merged)| table.get(isa, left, right) == merged));
                assert!(pairs.iter().all(|&(left, right, _)| table.get(isa, right + 1, left) == NOBODY));
            }
        }
    }
}
