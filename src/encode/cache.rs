//! Words that were seen before, and their ids: memory of a fixed size that starts small.
//!
//! Words of up to 15 bytes lie in lines of two keys and two values, one processor cache line each; a third word of
//! the same line takes the place of the older. A value is up to six ids of 20 bits and their count. Longer words, and
//! ids that do not fit, lie in a ring of memory whose oldest content is overwritten: a place is
//! valid as long as the ring has not come round to it. The bytes are always compared, so a hit is exact, and a word
//! that was driven out is only encoded again: ids never depend on the size of the cache.

use super::isa::{GOLDEN, SHORT, hash_long};
use super::memory::{Table, Zero};

/// Two words and their values.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line {
    /// The bytes of each word, its length in the last byte, and [`IN_RING`] if its ids are in the ring; 0 if there is none.
    pub keys: [u128; 2],
    /// See [`pack`].
    pub values: [u128; 2],
}

/// Ids that fit a value.
pub const PACKED: usize = 6;

/// The count of a value whose ids are in the spill of the batch.
pub const SPILLED: u128 = 0xff;
/// The count of a value that is two ids, a third one, and how many there are in all: the third one fills the rest.
pub const REPEATED: u128 = 0xfe;
/// Ids of such a value at most.
pub const MOST_REPEATED: usize = 16;
/// The bit of a key whose ids are in the ring. No word is looked up with it, so such a word is a miss at first.
const IN_RING: u128 = 0x80 << 120;

/// Up to [`PACKED`] ids as a value; the count is its top byte. None if there are more, or one has more than 20 bits.
#[inline(always)]
pub fn pack(ids: &[u32]) -> Option<u128> {
    if ids.len() > PACKED {
        return None;
    }
    let mut value = 0;
    let mut all = 0;
    for &id in ids.iter().rev() {
        value = value << 20 | u128::from(id);
        all |= id;
    }
    if all < 1 << 20 { Some(value | (ids.len() as u128) << 120) } else { None }
}

/// Up to [`MOST_REPEATED`] ids that are all the same from the third on. (Indents to GPT-2, which has no token for several
/// spaces: 6% of the words of Python files.)
#[inline(always)]
fn pack_repeated(ids: &[u32]) -> Option<u128> {
    if ids.len() <= PACKED || ids.len() > MOST_REPEATED || ids[3..].iter().any(|&id| id != ids[2]) {
        return None;
    }
    let value = pack(&ids[..3])? & !(0xff << 120);
    Some(value | (ids.len() as u128) << 60 | REPEATED << 120)
}

/// The number of ids of a [`REPEATED`] value.
#[inline(always)]
pub fn repeated_count(value: u128) -> usize {
    (value >> 60) as usize & 0xff
}

/// The count of a value.
#[inline(always)]
pub fn count(value: u128) -> usize {
    (value >> 120) as usize
}

/// A longer word: where in the ring it is.
#[derive(Clone, Copy)]
#[repr(C)]
struct Long {
    /// Position in the ring plus 1; 0 if there is none.
    at: u64,
    hash: u32,
    bytes: u16,
    ids: u16,
}

// SAFETY: integers.
unsafe impl Zero for Line {}
// SAFETY: integers.
unsafe impl Zero for Long {}

/// The bytes of the longest word that is kept.
pub const LONGEST: usize = 256;

/// How the memory of a cache is divided: lines, then ring, then places in the ring.
struct Sizes {
    lines: usize,
    ring: usize,
    longs: usize,
}

impl Sizes {
    /// The largest powers of two within `bytes`: two thirds for lines, a sixth for the ring, a twelfth for places.
    fn within(bytes: usize) -> Sizes {
        let power = |items: usize, least: usize| {
            if items <= least { least } else { 1 << (usize::BITS - 1 - items.leading_zeros()) }
        };
        Sizes {
            lines: power(bytes * 2 / 3 / size_of::<Line>(), 2),
            // Room for a few of the longest words: bytes and as many ids.
            ring: power(bytes / 6 / size_of::<u32>(), 2048),
            longs: power(bytes / 12 / size_of::<Long>(), 2),
        }
    }
}

/// What one thread has seen.
pub struct Cache {
    lines: Table<Line>,
    /// A hash of 32 bits shifted right by this is the number of a line.
    shift: u32,
    longs: Table<Long>,
    long_shift: u32,
    ring: Table<u32>,
    /// Where in the ring the next word goes, counted on for ever.
    head: u64,
    /// Words put in so far.
    added: usize,
    most: Sizes,
}

/// Lines that a cache begins with.
const SMALL: usize = 1 << 10;

/// All lines of a cache.
#[derive(Clone, Copy)]
pub struct Lines<'c> {
    /// A power of two of them, and at least two.
    lines: &'c [Line],
    shift: u32,
}

impl<'c> Lines<'c> {
    /// A hash shifted to the right by this is the number of a line.
    #[inline(always)]
    pub fn shift(self) -> u32 {
        self.shift
    }

    /// A line by its number.
    ///
    /// # Safety
    /// The number is a hash after the shift of these lines, which leaves as many bits as there are lines.
    #[inline(always)]
    pub unsafe fn at(self, number: u32) -> &'c Line {
        debug_assert!((number as usize) < self.lines.len());
        // SAFETY: the caller says that there is such a line.
        unsafe { self.lines.get_unchecked(number as usize) }
    }
}

impl Cache {
    /// An empty cache that may grow to `most_bytes`.
    pub fn new(most_bytes: usize) -> Cache {
        let most = Sizes::within(most_bytes);
        let (lines, longs) = (most.lines.min(SMALL), most.longs.min(SMALL / 4));
        Cache {
            lines: Table::new(lines, true),
            shift: 32 - lines.trailing_zeros(),
            longs: Table::new(longs, false),
            long_shift: 64 - longs.trailing_zeros(),
            // It is filled from its start, and only what is used of it takes memory.
            ring: Table::new(most.ring, false),
            head: 0,
            added: 0,
            most,
        }
    }

    /// Whether three eighths of the places may be taken, and more lines are allowed. A line has two places, so with more
    /// words than that many lines would get a third, which evicts one.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        4 * self.added > 3 * self.lines.len() && self.lines.len() < self.most.lines
    }

    /// How many lines there are now.
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// The number of lines for a text of `text` bytes: lines of that size. (Growing later costs more: every word is hashed
    /// again, and unmapping the old table interrupts all other threads. More lines would be more pages to clear.)
    pub fn lines_for(&self, text: usize) -> usize {
        (text / size_of::<Line>()).next_power_of_two().clamp(self.lines.len(), self.most.lines)
    }

    /// Four times as many lines as there are.
    #[inline(always)]
    pub fn more_lines(&self) -> usize {
        (4 * self.lines.len()).min(self.most.lines)
    }

    /// Makes it `lines`, and as many more places for longer words. `hash` is what words are looked up by.
    ///
    /// Only between batches: a batch remembers the numbers of lines.
    #[inline(always)]
    pub fn grow(&mut self, lines: usize, hash: impl Fn(&u128) -> u32) {
        let longs = (self.longs.len() * (lines / self.lines.len())).min(self.most.longs);
        let old_lines = std::mem::replace(&mut self.lines, Table::new(lines, true));
        self.shift = 32 - lines.trailing_zeros();
        for line in old_lines.iter() {
            // The older of a line first, so that it stays the older.
            for (key, value) in [(line.keys[1], line.values[1]), (line.keys[0], line.values[0])] {
                if key != 0 {
                    let number = hash(&(key & !IN_RING)) >> self.shift;
                    self.put_line(number, key, value);
                }
            }
        }
        let old_longs = std::mem::replace(&mut self.longs, Table::new(longs, false));
        self.long_shift = 64 - longs.trailing_zeros();
        for long in old_longs.iter().filter(|long| long.at != 0) {
            let place = self.long_place(u64::from(long.hash));
            self.longs[place] = *long;
        }
    }

    /// The lines, for looking up many words.
    #[inline(always)]
    pub fn lines(&self) -> Lines<'_> {
        Lines { lines: &self.lines, shift: self.shift }
    }

    /// The value of a short word that an earlier word of the batch may have put in, or whose ids are in the ring; these
    /// are appended to `spill`.
    #[inline(always)]
    pub fn again(&self, line: u32, key: u128, spill: &mut Vec<u32>) -> Option<u128> {
        let found = &self.lines[line as usize];
        for k in 0..2 {
            if found.keys[k] == key {
                return Some(found.values[k]);
            }
            if found.keys[k] == key | IN_RING {
                let (at, ids) = (found.values[k] as u64, (found.values[k] >> 64) as usize);
                return if self.valid(at) { Some(spilled(&self.ring[self.place(at)..][..ids], spill)) } else { None };
            }
        }
        None
    }

    /// Keeps the ids of a short word, and gives their value for this batch.
    #[inline(always)]
    pub fn put(&mut self, line: u32, key: u128, ids: &[u32], spill: &mut Vec<u32>) -> u128 {
        self.added += 1;
        if let Some(value) = pack(ids) {
            self.put_line(line, key, value);
            return value;
        }
        // Not more ids than bytes: room for as many is certain.
        if ids.len() <= (key >> 120) as usize
            && let Some(value) = pack_repeated(ids)
        {
            self.put_line(line, key, value);
            return value;
        }
        let at = self.room(ids.len());
        let place = self.place(at);
        self.ring[place..place + ids.len()].copy_from_slice(ids);
        self.put_line(line, key | IN_RING, (ids.len() as u128) << 64 | u128::from(at));
        spilled(ids, spill)
    }

    /// Keeps a value that was made elsewhere.
    #[inline(always)]
    pub fn put_value(&mut self, line: u32, key: u128, value: u128) {
        self.added += 1;
        self.put_line(line, key, value);
    }

    #[inline(always)]
    fn put_line(&mut self, line: u32, key: u128, value: u128) {
        let line = &mut self.lines[line as usize];
        if line.keys[0] == key {
            line.values[0] = value;
        } else {
            if line.keys[1] != key {
                line.keys[1] = line.keys[0];
                line.values[1] = line.values[0];
            } else {
                line.values.swap(0, 1);
                line.keys[1] = line.keys[0];
            }
            line.keys[0] = key;
            line.values[0] = value;
        }
    }

    /// The value of a word of more than 15 bytes, by its hash.
    #[inline(always)]
    pub fn long(&self, hash: u64, word: &[u8], spill: &mut Vec<u32>) -> Option<u128> {
        debug_assert!(word.len() > SHORT && hash == hash_long(word));
        let found = self.longs[self.long_place(hash)];
        if found.at == 0
            || found.hash != hash as u32
            || usize::from(found.bytes) != word.len()
            || !self.valid(found.at - 1)
        {
            return None;
        }
        let place = self.place(found.at - 1);
        let words = word.len().div_ceil(4);
        let bytes = &self.ring[place..place + words];
        if !bytes_equal(bytes, word) {
            return None;
        }
        let ids = &self.ring[place + words..][..usize::from(found.ids)];
        Some(packed_or_spilled(ids, spill))
    }

    /// Keeps the ids of a word of more than 15 bytes, unless it is very long, and gives their value for this batch.
    #[inline(always)]
    pub fn put_long(&mut self, hash: u64, word: &[u8], ids: &[u32], spill: &mut Vec<u32>) -> u128 {
        if word.len() <= LONGEST && ids.len() <= 2 * LONGEST {
            let words = word.len().div_ceil(4);
            let at = self.room(words + ids.len());
            let place = self.place(at);
            let (chunks, rest) = word.as_chunks::<4>();
            for (to, from) in self.ring[place..].iter_mut().zip(chunks) {
                *to = u32::from_le_bytes(*from);
            }
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                self.ring[place + chunks.len()] = u32::from_le_bytes(last);
            }
            self.ring[place + words..][..ids.len()].copy_from_slice(ids);
            let long = Long { at: at + 1, hash: hash as u32, bytes: word.len() as u16, ids: ids.len() as u16 };
            let slot = self.long_place(hash);
            self.longs[slot] = long;
            self.added += 1;
        }
        packed_or_spilled(ids, spill)
    }

    /// Where in memory the place of a long word is, to be fetched early.
    #[inline(always)]
    pub fn long_slot(&self, hash: u64) -> *const u8 {
        std::ptr::from_ref(&self.longs[self.long_place(hash)]).cast()
    }

    /// Where in memory the bytes of a long word may be, to be fetched early.
    #[inline(always)]
    pub fn long_bytes(&self, hash: u64) -> *const u32 {
        let at = self.longs[self.long_place(hash)].at.wrapping_sub(1);
        &raw const self.ring[self.place(at)]
    }

    #[inline(always)]
    fn long_place(&self, hash: u64) -> usize {
        // By the half that is kept, so that a larger table can be filled from a smaller one.
        (u64::from(hash as u32).wrapping_mul(GOLDEN) >> self.long_shift) as usize
    }

    #[inline(always)]
    fn place(&self, at: u64) -> usize {
        at as usize & (self.ring.len() - 1)
    }

    /// Whether the ring has not come round to `at` since.
    #[inline(always)]
    fn valid(&self, at: u64) -> bool {
        at + self.ring.len() as u64 >= self.head
    }

    /// A position in the ring with `need` words after it, none of which goes round the end.
    #[inline(always)]
    fn room(&mut self, need: usize) -> u64 {
        let mut at = self.head;
        if self.place(at) + need > self.ring.len() {
            at = (at | (self.ring.len() as u64 - 1)) + 1;
        }
        self.head = at + need as u64;
        at
    }
}

#[inline(always)]
fn packed_or_spilled(ids: &[u32], spill: &mut Vec<u32>) -> u128 {
    match pack(ids) {
        Some(value) => value,
        None => spilled(ids, spill),
    }
}

/// Appends `ids` to the spill of the batch and gives the value that says where.
#[inline(always)]
pub fn spilled(ids: &[u32], spill: &mut Vec<u32>) -> u128 {
    let from = spill.len();
    spill.extend_from_slice(ids);
    spilled_from(spill, from)
}

/// The value of the ids in the spill from `from` on.
#[inline(always)]
pub fn spilled_from(spill: &[u32], from: usize) -> u128 {
    SPILLED << 120 | ((spill.len() - from) as u128) << 48 | from as u128
}

/// Where in the spill the ids of a [`SPILLED`] value are.
#[inline(always)]
pub fn spill_range(value: u128) -> std::ops::Range<usize> {
    let from = (value & 0xffff_ffff_ffff) as usize;
    from..from + (value >> 48 & 0xffff_ffff_ffff) as usize
}

#[inline(always)]
fn bytes_equal(kept: &[u32], word: &[u8]) -> bool {
    let (chunks, rest) = word.as_chunks::<4>();
    for k in 0..chunks.len() {
        if kept[k] != u32::from_le_bytes(chunks[k]) {
            return false;
        }
    }
    rest.is_empty() || kept[chunks.len()].to_le_bytes()[..rest.len()] == *rest
}
