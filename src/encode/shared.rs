//! Words that any thread of an encoder has merged: a new word of a corpus is then merged once, not once by each thread.
//!
//! A second-level cache: a table of fixed size that is looked up after a thread's own cache. Each slot is a sequence lock
//! (seqlock) in one processor cache line: its version is odd during a write. A reader that sees an odd version, or two
//! different versions before and after, treats it as a miss; a writer that finds the slot locked skips the write. So no
//! thread ever waits, and no torn value is ever returned. Ids must be the same as without this table.

use super::memory::{Table, Zero};
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[repr(align(64))]
struct Slot {
    version: AtomicU64,
    /// The key of a word and its value, as in `cache`, in halves; 0 if there is none.
    words: [AtomicU64; 4],
}

// SAFETY: integers.
unsafe impl Zero for Slot {}

/// The table.
pub struct Shared {
    /// A power of two of them.
    slots: Table<Slot>,
}

/// 2 MiB for each thread.
const SLOTS: usize = 1 << 15;
/// 8 MiB: some hundred thousand words, those of the last few hundred megabytes of most texts.
const LEAST_SLOTS: usize = 1 << 17;

impl Shared {
    /// An empty table for so many threads.
    pub fn new(threads: usize) -> Shared {
        Shared::with_slots((SLOTS * threads).next_power_of_two().max(LEAST_SLOTS))
    }

    /// Whether this is as large as a new one for so many threads.
    pub fn suits(&self, threads: usize) -> bool {
        self.slots.len() >= SLOTS * threads
    }

    fn with_slots(slots: usize) -> Shared {
        Shared { slots: Table::new(slots, true) }
    }

    #[inline(always)]
    fn slot(&self, hash: u64) -> &Slot {
        // By other bits than the table of whole words, which is asked before.
        &self.slots[(hash >> 20) as usize & (self.slots.len() - 1)]
    }

    /// Where `get` looks, to be fetched early.
    #[inline(always)]
    pub fn place(&self, hash: u64) -> *const u8 {
        std::ptr::from_ref(self.slot(hash)).cast()
    }

    /// The value of a word by its key and the hash of that.
    #[inline(always)]
    pub fn get(&self, key: u128, hash: u64) -> Option<u128> {
        let slot = self.slot(hash);
        let before = slot.version.load(Ordering::Acquire);
        let [a, b, c, d] = [0, 1, 2, 3].map(|half| slot.words[half].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = before & 1 == 0 && slot.version.load(Ordering::Relaxed) == before;
        (same && joined(a, b) == key).then(|| joined(c, d))
    }

    /// Keeps the value of a word for all threads, in place of what was there.
    #[inline(always)]
    pub fn put(&self, key: u128, hash: u64, value: u128) {
        let slot = self.slot(hash);
        let version = slot.version.load(Ordering::Relaxed);
        let mine = version & 1 == 0
            && slot.version.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if mine {
            // The odd version is seen before any of the words is.
            fence(Ordering::Release);
            slot.words[0].store(key as u64, Ordering::Relaxed);
            slot.words[1].store((key >> 64) as u64, Ordering::Relaxed);
            slot.words[2].store(value as u64, Ordering::Relaxed);
            slot.words[3].store((value >> 64) as u64, Ordering::Relaxed);
            slot.version.store(version + 2, Ordering::Release);
        }
    }
}

#[inline(always)]
fn joined(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(key: u128) -> u128 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1
    }

    #[test]
    fn what_was_put_is_found_until_another_word_takes_its_place() {
        let shared = Shared::with_slots(2);
        assert_eq!(shared.get(5, 0), None);
        shared.put(5, 0, value_of(5));
        assert_eq!(shared.get(5, 0), Some(value_of(5)));
        assert_eq!(shared.get(6, 0), None);
        shared.put(6, 0, value_of(6));
        assert_eq!((shared.get(5, 0), shared.get(6, 0)), (None, Some(value_of(6))));
    }

    #[test]
    fn threads_that_write_the_same_slots_never_see_a_value_of_another_word() {
        let shared = Shared::with_slots(4);
        let found: usize = std::thread::scope(|scope| {
            let work = |seed: u128| {
                let shared = &shared;
                scope.spawn(move || {
                    let mut found = 0;
                    for step in 0..200_000u128 {
                        let key = 1 + (step * seed) % 61;
                        // All keys in four slots.
                        let hash = (key as u64 & 3) << 20;
                        for value in [shared.get(key, hash), {
                            shared.put(key, hash, value_of(key));
                            shared.get(key, hash)
                        }] {
                            assert!(value.is_none_or(|value| value == value_of(key)));
                            found += usize::from(value.is_some());
                        }
                    }
                    found
                })
            };
            [7, 11, 13, 17].map(work).into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert!(found > 0);
    }
}
