//! Two neighbouring symbols -> the symbol that merging them makes.
//!
//! One entry per token is enough, although several pairs may spell one token: inside the bytes of a token, merging
//! takes the same steps whatever stands around them, as long as no merge crosses its border. So of all pairs that
//! spell it, only the one that is the last step of the token's own encoding can ever stand there.
//!
//! An entry is found in one step: a table of displacements, searched for once when the vocabulary is loaded, sends
//! every key to a slot of its own (a perfect hash). Probing instead would be a branch that no processor can predict.

use super::isa::GOLDEN;
use super::memory::{Table, touch};

/// Symbols are numbers below this; it stands for "no symbol". (One more would make two of them the key of an empty entry.)
pub const NOBODY: u32 = (1 << KEY_BITS) - 2;
/// Bits of a symbol in a key.
pub const KEY_BITS: u32 = 21;
/// Bits of an entry below its key.
pub const VALUE_BITS: u32 = 22;

const EMPTY: u64 = u64::MAX;

#[inline(always)]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << KEY_BITS | u64::from(right)
}

/// The key of an entry.
#[inline(always)]
fn key_in(entry: u64) -> u64 {
    entry >> VALUE_BITS
}

/// The symbol of an entry.
#[inline(always)]
fn symbol_in(entry: u64) -> u32 {
    entry as u32 & ((1 << VALUE_BITS) - 1)
}

/// The finished table.
pub struct Pairs {
    pub slots: Table<u64>,
    /// The displacement of each group of keys, and above it a Bloom filter of 32 bits: a pair that is not there is
    /// mostly rejected here, in memory that stays in a core's own cache.
    pub groups: Table<u64>,
    /// A key times this is its hash.
    pub multiplier: u64,
    pub shift: u32,
}

impl Pairs {
    /// A table of (left, right, merged), each pair once.
    pub fn new(pairs: &[(u32, u32, u32)]) -> Pairs {
        let mut slots = (pairs.len() * 10 / 9).next_power_of_two().max(16);
        loop {
            // Two keys of a group may collide for every displacement: then another multiplier helps.
            for odd in [1, 3, 5, 7, 9, 11, 13, 15] {
                if let Some(table) = Pairs::with_slots(pairs, slots, GOLDEN.wrapping_mul(odd)) {
                    return table;
                }
            }
            slots *= 2;
        }
    }

    /// None if for some group of keys no displacement leads to free slots.
    fn with_slots(pairs: &[(u32, u32, u32)], slots: usize, multiplier: u64) -> Option<Pairs> {
        let groups = slots / 4;
        let shift = 64 - slots.trailing_zeros();
        // Keys by group, the largest group first: it needs the most room.
        let mut entries: Vec<(u32, u64, u64)> = pairs
            .iter()
            .map(|&(left, right, merged)| {
                let key = key(left, right);
                let hash = key.wrapping_mul(multiplier);
                (group_of(hash, groups) as u32, hash, key << VALUE_BITS | u64::from(merged))
            })
            .collect();
        entries.sort_unstable();
        if entries.windows(2).any(|two| two[0].0 == two[1].0 && two[0].1 >> shift == two[1].1 >> shift) {
            return None;
        }
        let mut by_group: Vec<&[(u32, u64, u64)]> = entries.chunk_by(|a, b| a.0 == b.0).collect();
        by_group.sort_by_key(|group| std::cmp::Reverse(group.len()));

        let mut table: Table<u64> = Table::new(slots, true);
        table.fill(EMPTY);
        let mut filled: Table<u64> = Table::new(groups, true);
        for group in by_group {
            let slot_of = |hash: u64, displacement: usize| (hash >> shift) as usize ^ displacement;
            let displacement = (0..slots)
                .find(|&displacement| group.iter().all(|&(_, hash, _)| table[slot_of(hash, displacement)] == EMPTY))?;
            let word = &mut filled[group[0].0 as usize];
            *word = displacement as u64;
            for &(_, hash, entry) in group {
                *word |= filter_bit(hash);
                table[slot_of(hash, displacement)] = entry;
            }
        }
        Some(Pairs { slots: table, groups: filled, multiplier, shift })
    }

    /// Reads all of it.
    pub fn touch(&self) {
        touch(&self.groups);
        touch(&self.slots);
    }

    /// What merging `left` and `right` makes, or [`NOBODY`]; either may be [`NOBODY`].
    #[inline(always)]
    pub fn get(&self, left: u32, right: u32) -> u32 {
        let key = key(left, right);
        let hash = key.wrapping_mul(self.multiplier);
        // SAFETY: a group is taken modulo the number of groups. The top bits of a hash are below the number of
        // slots, a power of two, and so is each displacement, and with them their exclusive or.
        let entry = unsafe {
            let group = *self.groups.get_unchecked(group_of(hash, self.groups.len()));
            let slot = (hash >> self.shift) as usize ^ group as u32 as usize;
            // Most pairs are no token. They must not cost a cache miss: any slot will do, as none has such a key.
            let slot = std::hint::select_unpredictable(group & filter_bit(hash) == 0, 0, slot);
            *self.slots.get_unchecked(slot)
        };
        std::hint::select_unpredictable(key_in(entry) == key, symbol_in(entry), NOBODY)
    }
}

/// From other bits of the hash than the bucket, which are its top ones.
#[inline(always)]
fn group_of(hash: u64, groups: usize) -> usize {
    (hash >> 26) as usize & (groups - 1)
}

/// The bit of a key in the Bloom filter of its group, which is the upper half of the group's word.
#[inline(always)]
fn filter_bit(hash: u64) -> u64 {
    1 << (32 + (hash >> 20 & 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_found_and_no_other() {
        for n in [0, 1, 5, 1000, 29_491, 40_000] {
            let pairs: Vec<_> = (0..n).map(|i: u32| (i * 7 % 2_000_003, i * 13 % 1_999_993, i)).collect();
            let table = Pairs::new(&pairs);
            for &(left, right, merged) in &pairs {
                assert_eq!(table.get(left, right), merged);
                assert_eq!(table.get(right + 1, left), NOBODY);
            }
            assert_eq!(table.get(NOBODY, 3), NOBODY);
            assert_eq!(table.get(3, NOBODY), NOBODY);
        }
    }
}
