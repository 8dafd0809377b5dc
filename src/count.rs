//! Pretokens -> counts.
//!
//! In: documents, cut by a [`Split`]. Out: every distinct pretoken ("word") and how often it occurred, in 64 bits.
//! The result is the same for any order of blocks and any number of threads, whether or not it went over disk.
//!
//! Each thread counts into its own table; tables are merged at the end. A word of up to 15 bytes, as nearly all
//! are, lives inside its table entry, so looking it up touches one place in memory; longer words live in an
//! arena. When the tables together pass a third of the memory budget, the largest is sorted and spilled to disk (a
//! table that grows holds its old and its new self, which is twice as large, for a moment). Sorted runs are merged when
//! there are many of them, and at the end.
//!
//! Documents may have tags, one for each group of them: then a word is counted with the two bytes of its tag before it,
//! and [`WordCounts::by_group`] takes the groups apart.

use crate::arrays::slices;
use crate::error::{Error, Result};
use crate::lock;
use crate::pretoken::Split;
use crate::runs::{self, Item, SpilledRun};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::cmp::{Ordering, Reverse};
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

/// Distinct words, one after another, where each ends, and their counts; heaviest first.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct WordCounts {
    /// All words, concatenated.
    pub data: Vec<u8>,
    /// End of each word in `data`.
    pub ends: Vec<u64>,
    /// How often each word occurred.
    pub counts: Vec<u64>,
}

impl WordCounts {
    fn push(&mut self, word: &[u8], count: u64) {
        self.data.extend_from_slice(word);
        self.ends.push(self.data.len() as u64);
        self.counts.push(count);
    }

    /// Which word is where by falling count; with `ties`, equal counts by ascending bytes, so that the order is a
    /// function of the content (merging does not care, a saved file does).
    pub fn order(&self, ties: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.counts.len()).collect();
        if ties {
            order.sort_unstable_by_key(|&at| (Reverse(self.counts[at]), self.word(at)));
        } else {
            order.sort_unstable_by_key(|&at| Reverse(self.counts[at]));
        }
        order
    }

    /// Word number `at`.
    pub fn word(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.data[start as usize..self.ends[at] as usize]
    }

    /// The words of each of `groups` groups, without their tags. `tags` has for each tag the group that its words are
    /// of, and what their counts are multiplied by.
    pub fn by_group(&self, tags: &[(usize, u64)], groups: usize) -> Result<Vec<WordCounts>> {
        let mut tables: Vec<Table> = (0..groups).map(|_| Table::default()).collect();
        let mut total = Some(0u64);
        for (at, &count) in self.counts.iter().enumerate() {
            let Some((tag, word)) = self.word(at).split_first_chunk() else { continue };
            let known = tags.get(u16::from_be_bytes(*tag) as usize);
            let Some((table, by)) = known.and_then(|&(group, by)| Some((tables.get_mut(group)?, by))) else {
                return Err(Error::Source(format!("tag {tag:?}: no group of that tag")));
            };
            let count = count.checked_mul(by);
            total = total.zip(count).and_then(|(total, count)| total.checked_add(count));
            if let Some(count) = count.filter(|&count| count > 0) {
                table.add_in(&self.data, word, count);
            }
        }
        if total.is_none() {
            return Err(Error::Plan(
                "weight: the weighted counts add up to 2^64 or more. Give rounder weights.".into(),
            ));
        }
        Ok(tables.into_iter().map(Table::into_counts).collect())
    }

    /// The same words in another order.
    pub fn in_order(&self, order: &[usize]) -> WordCounts {
        let mut words = WordCounts {
            data: Vec::with_capacity(self.data.len()),
            ends: Vec::with_capacity(order.len()),
            counts: Vec::with_capacity(order.len()),
        };
        order.iter().for_each(|&at| words.push(self.word(at), self.counts[at]));
        words
    }
}

/// Words of up to this many bytes are kept inside their entry; the 16th byte holds the length.
const SHORT: usize = 15;

#[derive(Clone, Copy)]
struct Short {
    /// Bytes in the low end, length in the top byte: two short words are equal if and only if their keys are.
    key: [u64; 2],
    count: u64,
}

#[derive(Clone, Copy)]
struct Long {
    start: usize,
    len: usize,
    count: u64,
}

fn short_hash(key: [u64; 2]) -> u64 {
    let wide = (key[0] ^ 0x9e37_79b9_7f4a_7c15) as u128 * (key[1] ^ 0xd6e8_feb8_6659_fd93) as u128;
    (wide >> 64) as u64 ^ wide as u64
}

/// The bytes of a short word that lies in `text`.
#[inline]
fn short_key(text: &[u8], word: &[u8]) -> u128 {
    let start = word.as_ptr() as usize - text.as_ptr() as usize;
    match text.get(start..start + 16).and_then(|wide| <[u8; 16]>::try_from(wide).ok()) {
        Some(wide) => u128::from_le_bytes(wide) & ((1 << (8 * word.len())) - 1),
        None => {
            let mut wide = [0; 16];
            wide[..word.len()].copy_from_slice(word);
            u128::from_le_bytes(wide)
        }
    }
}

/// One thread's counts.
#[derive(Default)]
struct Table {
    short: HashTable<Short>,
    long: HashTable<Long>,
    arena: Vec<u8>,
}

impl Table {
    fn bytes(&self) -> usize {
        self.short.allocation_size() + self.long.allocation_size() + self.arena.capacity()
    }

    fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Counts `word`, which lies in `text` (so that 16 bytes can usually be read at once).
    #[inline]
    fn add_in(&mut self, text: &[u8], word: &[u8], count: u64) {
        let len = word.len();
        if len > SHORT {
            return self.add_long(word, count);
        }
        let key = short_key(text, word) | (len as u128) << 120;
        self.add_short([key as u64, (key >> 64) as u64], count);
    }

    /// As `add_in`, once, with a tag before the word. `scratch` is for words that are long with it.
    #[inline]
    fn add_tagged(&mut self, text: &[u8], word: &[u8], tag: [u8; 2], scratch: &mut Vec<u8>) {
        let len = word.len() + 2;
        if len > SHORT {
            scratch.clear();
            scratch.extend_from_slice(&tag);
            scratch.extend_from_slice(word);
            return self.add_long(scratch, 1);
        }
        let key = short_key(text, word) << 16 | u16::from_le_bytes(tag) as u128 | (len as u128) << 120;
        self.add_short([key as u64, (key >> 64) as u64], 1);
    }

    #[inline]
    fn add_short(&mut self, key: [u64; 2], count: u64) {
        let hash = short_hash(key);
        match self.short.entry(hash, |entry| entry.key == key, |entry| short_hash(entry.key)) {
            Entry::Occupied(mut entry) => entry.get_mut().count += count,
            Entry::Vacant(entry) => {
                entry.insert(Short { key, count });
            }
        }
    }

    fn add_long(&mut self, word: &[u8], count: u64) {
        let arena = &mut self.arena;
        let at = |entry: &Long| entry.start..entry.start + entry.len;
        match self.long.entry(xxh3_64(word), |entry| arena[at(entry)] == *word, |entry| xxh3_64(&arena[at(entry)])) {
            Entry::Occupied(mut entry) => entry.get_mut().count += count,
            Entry::Vacant(entry) => {
                entry.insert(Long { start: arena.len(), len: word.len(), count });
                arena.extend_from_slice(word);
            }
        }
    }

    /// Adds all of `other`.
    fn absorb(&mut self, other: &Table) {
        other.short.iter().for_each(|entry| self.add_short(entry.key, entry.count));
        other
            .long
            .iter()
            .for_each(|entry| self.add_long(&other.arena[entry.start..entry.start + entry.len], entry.count));
    }

    fn for_each(&self, mut each: impl FnMut(&[u8], u64)) {
        for entry in &self.short {
            let wide = (entry.key[0] as u128 | (entry.key[1] as u128) << 64).to_le_bytes();
            each(&wide[..wide[15] as usize], entry.count);
        }
        for entry in &self.long {
            each(&self.arena[entry.start..entry.start + entry.len], entry.count);
        }
    }

    fn into_counts(self) -> WordCounts {
        let mut counts = WordCounts::default();
        self.for_each(|word, count| counts.push(word, count));
        counts
    }
}

/// This many runs of one level are merged into one of the next: only a few times as many files are open at once.
#[cfg(not(test))]
const MANY_RUNS: usize = 64;
#[cfg(test)]
const MANY_RUNS: usize = 3;

/// A word on disk, and how often it occurred; runs are sorted by the word's bytes.
#[derive(Default)]
struct Counted {
    word: Vec<u8>,
    count: u64,
}

impl Item for Counted {
    fn order(&self, other: &Self) -> Ordering {
        self.word.cmp(&other.word)
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&(self.word.len() as u64).to_le_bytes())?;
        out.write_all(&self.count.to_le_bytes())?;
        out.write_all(&self.word)
    }

    fn read(&mut self, from: &mut impl BufRead) -> io::Result<()> {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        self.word.resize(u64::from_le_bytes(head) as usize, 0);
        from.read_exact(&mut head)?;
        self.count = u64::from_le_bytes(head);
        from.read_exact(&mut self.word)
    }
}

/// Counts the pretokens of documents, from any number of threads at once.
pub struct Counter {
    split: Split,
    budget: usize,
    spill_dir: PathBuf,
    idle: Mutex<Vec<Table>>,
    /// Runs on disk, and how often the words of each were merged.
    runs: Mutex<Vec<(u32, SpilledRun)>>,
    used: AtomicUsize,
    distinct: AtomicUsize,
    /// Sum of all counts from elsewhere.
    total: AtomicU64,
    spills: AtomicUsize,
    spilled_bytes: AtomicU64,
}

impl Counter {
    /// A counter whose tables hold at most about `budget` bytes; what is beyond goes to files in `spill_dir`.
    pub fn new(split: Split, budget: usize, spill_dir: PathBuf) -> Self {
        Counter {
            split,
            budget,
            spill_dir,
            idle: Mutex::default(),
            runs: Mutex::default(),
            used: AtomicUsize::new(0),
            distinct: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            spills: AtomicUsize::new(0),
            spilled_bytes: AtomicU64::new(0),
        }
    }

    /// Distinct words seen, counting a word once per table and run that has it.
    pub fn distinct(&self) -> usize {
        self.distinct.load(Relaxed)
    }

    /// How often a table was spilled, and the bytes written to disk.
    pub fn spills(&self) -> (usize, u64) {
        (self.spills.load(Relaxed), self.spilled_bytes.load(Relaxed))
    }

    /// Counts the pretokens of every document in `data`; `ends` has the end of each document, and `tags` its tag.
    pub fn add(&self, data: &[u8], ends: &[i64], tags: Option<&[u16]>) -> Result<()> {
        let split = self.split.clone(); // shared, a regex of the user's own would make threads wait for each other
        if tags.is_some_and(|tags| tags.len() != ends.len()) {
            return Err(Error::Source(format!("{} documents, expected a tag for each", ends.len())));
        }
        let mut scratch = Vec::new();
        self.with_table(|table| {
            for (at, document) in pieces(data, ends)?.enumerate() {
                let tag = tags.map(|tags| tags[at].to_be_bytes());
                if split.is_none() && !document.is_empty() {
                    // It may be any bytes.
                    match tag {
                        None => table.add_in(document, document, 1),
                        Some(tag) => table.add_tagged(document, document, tag, &mut scratch),
                    }
                    continue;
                }
                let text = simdutf8::compat::from_utf8(document)
                    .map_err(|error| Error::Source(format!("a document is not valid UTF-8: {error}")))?;
                match tag {
                    None => split.for_each(text, |word| table.add_in(document, word, 1))?,
                    Some(tag) => split.for_each(text, |word| table.add_tagged(document, word, tag, &mut scratch))?,
                }
            }
            Ok(())
        })
    }

    /// Adds words that were counted elsewhere.
    pub fn add_counts(&self, data: &[u8], ends: &[i64], counts: &[u64]) -> Result<()> {
        if ends.len() != counts.len() {
            return Err(Error::Source(format!("{} words but {} counts", ends.len(), counts.len())));
        }
        // No sum over some of the counts can be larger than this one.
        let sum = counts.iter().try_fold(0, |sum: u64, &count| sum.checked_add(count));
        let sum = sum.filter(|&sum| self.total.fetch_update(Relaxed, Relaxed, |total| total.checked_add(sum)).is_ok());
        if sum.is_none() {
            return Err(Error::Source("the counts add up to 2^64 or more; they cannot be of real text".into()));
        }
        self.with_table(|table| {
            // A word that never occurred is no word, whether or not it goes over disk.
            let counted = pieces(data, ends)?.zip(counts).filter(|&(_, &count)| count > 0);
            counted.for_each(|(word, &count)| table.add_in(data, word, count));
            Ok(())
        })
    }

    /// Runs `work` on a table that no other thread has, and spills the largest idle one if memory asks for it.
    fn with_table(&self, work: impl FnOnce(&mut Table) -> Result<()>) -> Result<()> {
        let mut table = lock(&self.idle).pop().unwrap_or_default();
        let (bytes, len) = (table.bytes(), table.len());
        let worked = work(&mut table);
        self.distinct.fetch_add(table.len() - len, Relaxed);
        let grown = table.bytes() - bytes;
        let used = self.used.fetch_add(grown, Relaxed) + grown;
        let mut idle = lock(&self.idle);
        idle.push(table);
        worked?;
        if used > self.budget / 3 {
            // The largest, which need not be this one: while it lies idle, this one would be spilled after every block.
            idle.sort_unstable_by_key(Table::bytes);
            let largest = idle.pop().unwrap_or_default();
            drop(idle);
            self.used.fetch_sub(largest.bytes(), Relaxed);
            self.spill(largest)?;
        }
        Ok(())
    }

    fn spill(&self, table: Table) -> Result<()> {
        let words = table.into_counts();
        let mut order: Vec<usize> = (0..words.counts.len()).collect();
        order.sort_unstable_by_key(|&at| words.word(at));
        let mut item = Counted::default();
        let run = self.write_run(|out| {
            order.iter().try_for_each(|&at| {
                item.word.clear();
                item.word.extend_from_slice(words.word(at));
                item.count = words.counts[at];
                item.write(out)
            })
        })?;
        self.spills.fetch_add(1, Relaxed);
        self.keep(run)
    }

    fn write_run(&self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<SpilledRun> {
        let written = SpilledRun::create(&self.spill_dir).and_then(|mut out| {
            write(&mut out)?;
            SpilledRun::finish(out)
        });
        let run = written.map_err(|error| self.failed(error))?;
        self.spilled_bytes.fetch_add(run.bytes, Relaxed);
        Ok(run)
    }

    /// Adds a run to the others, and merges those of its level if they are many.
    fn keep(&self, mut run: SpilledRun) -> Result<()> {
        for level in 0.. {
            let mut runs = lock(&self.runs);
            runs.push((level, run));
            if runs.iter().filter(|(other, _)| *other == level).count() < MANY_RUNS {
                break;
            }
            let (alike, others) = std::mem::take(&mut *runs).into_iter().partition(|(other, _)| *other == level);
            *runs = others;
            drop(runs);
            run = self.write_run(|out| merge_counts(alike, |word| word.write(out)))?;
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Training(format!(
            "{}: cannot spill counts to disk: {error}. Allow more memory, or point TMPDIR to a disk with room.",
            self.spill_dir.display()
        ))
    }

    /// All counts. The counter is empty afterwards.
    pub fn finish(&self) -> Result<WordCounts> {
        let tables = std::mem::take(&mut *lock(&self.idle));
        self.used.store(0, Relaxed);
        self.total.store(0, Relaxed);
        if lock(&self.runs).is_empty() {
            let counts = absorb_all(tables).into_counts();
            self.distinct.store(counts.counts.len(), Relaxed);
            return Ok(counts);
        }
        for table in tables {
            self.spill(table)?;
        }
        let runs = std::mem::take(&mut *lock(&self.runs));
        let mut counts = WordCounts::default();
        let push = |word: &Counted| {
            counts.push(&word.word, word.count);
            Ok(())
        };
        merge_counts(runs, push).map_err(|error| {
            Error::Training(format!("{}: cannot read spilled counts back: {error}", self.spill_dir.display()))
        })?;
        self.distinct.store(counts.counts.len(), Relaxed);
        Ok(counts)
    }
}

/// Merges tables two by two, all couples of a round at once.
fn absorb_all(mut tables: Vec<Table>) -> Table {
    tables.sort_unstable_by_key(|table| Reverse(table.len()));
    while tables.len() > 1 {
        let small = tables.split_off(tables.len().div_ceil(2));
        std::thread::scope(|scope| {
            for (table, other) in tables.iter_mut().zip(small) {
                scope.spawn(move || table.absorb(&other));
            }
        });
    }
    tables.pop().unwrap_or_default()
}

/// Calls `each` with every word of `runs` and the sum of its counts, in the order of the words' bytes.
fn merge_counts(runs: Vec<(u32, SpilledRun)>, mut each: impl FnMut(&Counted) -> io::Result<()>) -> io::Result<()> {
    let open = runs.into_iter().map(|(_, run)| run.open()).collect::<io::Result<Vec<_>>>()?;
    let mut sum = Counted::default();
    runs::merge(open, |item: &Counted, _| {
        // A word on disk was counted at least once: only the sum that has not begun is 0.
        if sum.count > 0 && sum.word == item.word {
            sum.count += item.count;
            return Ok(());
        }
        if sum.count > 0 {
            each(&sum)?;
        }
        sum.word.clone_from(&item.word);
        sum.count = item.count;
        Ok(())
    })?;
    if sum.count > 0 { each(&sum) } else { Ok(()) }
}

/// The documents or words of a flat buffer.
pub fn pieces<'d, T>(data: &'d [T], ends: &'d [i64]) -> Result<impl Iterator<Item = &'d [T]>> {
    let increasing = ends.windows(2).all(|two| two[0] <= two[1]);
    if !increasing
        || ends.first().is_some_and(|&end| end < 0)
        || ends.last().is_some_and(|&end| end as usize > data.len())
    {
        return Err(Error::Source(format!("ends must rise from 0 to at most {} (the length of the data)", data.len())));
    }
    Ok(slices(data, ends))
}
