//! Pretokens -> counts.
//!
//! In: documents, cut by a [`Split`]. Out: every distinct pretoken ("word") and how often it occurred, in 64 bits.
//! The result is the same for any order of blocks and any number of threads, whether or not it went over disk.
//!
//! Each thread counts into its own table; tables are merged at the end. A word of up to 15 bytes, as nearly all
//! are, lives inside its table entry, so looking it up touches one place in memory; longer words live in an
//! arena. When the tables together pass half the memory budget, a table is sorted and spilled to disk (the other
//! half is for tables that are just growing); sorted runs are merged at the end.

use crate::error::{Error, Result};
use crate::pretoken::Split;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
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
    /// Words with their counts, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .zip(&self.counts)
            .map(|((start, &end), &count)| (&self.data[start as usize..end as usize], count))
    }

    fn push(&mut self, word: &[u8], count: u64) {
        self.data.extend_from_slice(word);
        self.ends.push(self.data.len() as u64);
        self.counts.push(count);
    }

    /// The same words by falling count; with `ties`, equal counts by ascending bytes, so that the order is a
    /// function of the content (merging does not care, a saved file does).
    pub fn sorted(&self, ties: bool) -> WordCounts {
        let mut words: Vec<(&[u8], u64)> = self.iter().collect();
        if ties {
            words.sort_unstable_by_key(|&(word, count)| (Reverse(count), word));
        } else {
            words.sort_unstable_by_key(|&(_, count)| Reverse(count));
        }
        let mut sorted = WordCounts {
            data: Vec::with_capacity(self.data.len()),
            ends: Vec::with_capacity(words.len()),
            counts: Vec::with_capacity(words.len()),
        };
        words.into_iter().for_each(|(word, count)| sorted.push(word, count));
        sorted
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
        let start = word.as_ptr() as usize - text.as_ptr() as usize;
        let key = match text.get(start..start + 16).and_then(|wide| <[u8; 16]>::try_from(wide).ok()) {
            Some(wide) => u128::from_le_bytes(wide) & ((1 << (8 * len)) - 1),
            None => {
                let mut wide = [0; 16];
                wide[..len].copy_from_slice(word);
                u128::from_le_bytes(wide)
            }
        } | (len as u128) << 120;
        self.add_short([key as u64, (key >> 64) as u64], count);
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

/// Counts the pretokens of documents, from any number of threads at once.
pub struct Counter {
    split: Split,
    budget: usize,
    spill_dir: PathBuf,
    idle: Mutex<Vec<Table>>,
    spilled: Mutex<Vec<File>>,
    used: AtomicUsize,
    distinct: AtomicUsize,
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
            spilled: Mutex::default(),
            used: AtomicUsize::new(0),
            distinct: AtomicUsize::new(0),
            spilled_bytes: AtomicU64::new(0),
        }
    }

    /// Distinct words seen, counting a word once per table and run that has it.
    pub fn distinct(&self) -> usize {
        self.distinct.load(Relaxed)
    }

    /// Sorted runs on disk, and their bytes.
    pub fn spills(&self) -> (usize, u64) {
        (lock(&self.spilled).len(), self.spilled_bytes.load(Relaxed))
    }

    /// Counts the pretokens of every document in `data`; `ends` tells where each document ends.
    pub fn add(&self, data: &[u8], ends: &[i64]) -> Result<()> {
        let split = self.split.clone(); // shared, a regex of the user's own would make threads wait for each other
        self.with_table(|table| {
            for document in pieces(data, ends)? {
                let text = simdutf8::compat::from_utf8(document)
                    .map_err(|error| Error::Source(format!("a document is not valid UTF-8: {error}")))?;
                split.for_each(text, |word| table.add_in(document, word, 1))?;
            }
            Ok(())
        })
    }

    /// Adds words that were counted elsewhere.
    pub fn add_counts(&self, data: &[u8], ends: &[i64], counts: &[u64]) -> Result<()> {
        if ends.len() != counts.len() {
            return Err(Error::Source(format!("{} words but {} counts", ends.len(), counts.len())));
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
        work(&mut table)?;
        self.distinct.fetch_add(table.len() - len, Relaxed);
        let grown = table.bytes() - bytes;
        let used = self.used.fetch_add(grown, Relaxed) + grown;
        let mut idle = lock(&self.idle);
        idle.push(table);
        if used > self.budget / 2 {
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
        let failed = |error: io::Error| {
            Error::Training(format!(
                "{}: cannot spill counts to disk: {error}. Give more --memory, or point TMPDIR to a disk with room.",
                self.spill_dir.display()
            ))
        };
        let mut counts = Vec::with_capacity(table.len());
        let mut words = WordCounts::default();
        table.for_each(|word, count| words.push(word, count));
        drop(table);
        counts.extend(words.iter());
        counts.sort_unstable();
        let file = unnamed_file(&self.spill_dir).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, &file);
        let mut bytes = 0;
        for (word, count) in counts {
            let head = [word.len() as u64, count];
            out.write_all(&head[0].to_le_bytes()).map_err(failed)?;
            out.write_all(&head[1].to_le_bytes()).map_err(failed)?;
            out.write_all(word).map_err(failed)?;
            bytes += 16 + word.len() as u64;
        }
        out.flush().map_err(failed)?;
        drop(out);
        self.spilled_bytes.fetch_add(bytes, Relaxed);
        lock(&self.spilled).push(file);
        Ok(())
    }

    /// All counts. The counter is empty afterwards.
    pub fn finish(&self) -> Result<WordCounts> {
        let tables = std::mem::take(&mut *lock(&self.idle));
        self.used.store(0, Relaxed);
        if lock(&self.spilled).is_empty() {
            let counts = absorb_all(tables).into_counts();
            self.distinct.store(counts.counts.len(), Relaxed);
            return Ok(counts);
        }
        for table in tables {
            self.spill(table)?;
        }
        let runs = std::mem::take(&mut *lock(&self.spilled));
        let counts = merge_runs(runs).map_err(|error| {
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

/// A file that has no name any more, so that it goes when the process does, however it ends.
fn unnamed_file(dir: &std::path::Path) -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let path = dir.join(format!("piecemill-{}-{}.counts", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        match File::options().read(true).write(true).create_new(true).open(&path) {
            // Containers that share a folder can have the same process number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
        }
    }
}

struct RunReader {
    reader: BufReader<File>,
    word: Vec<u8>,
    count: u64,
}

impl RunReader {
    fn open(mut file: File) -> io::Result<Self> {
        io::Seek::rewind(&mut file)?;
        Ok(RunReader { reader: BufReader::with_capacity(1 << 18, file), word: Vec::new(), count: 0 })
    }

    /// Reads the next word; false at the end.
    fn next(&mut self) -> io::Result<bool> {
        let mut head = [0; 8];
        match self.reader.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        self.word.resize(u64::from_le_bytes(head) as usize, 0);
        self.reader.read_exact(&mut head)?;
        self.count = u64::from_le_bytes(head);
        self.reader.read_exact(&mut self.word)?;
        Ok(true)
    }
}

/// Sums sorted runs into one, in order of the words' bytes.
fn merge_runs(files: Vec<File>) -> io::Result<WordCounts> {
    let mut readers = Vec::with_capacity(files.len());
    let mut heads = BinaryHeap::new();
    for (at, file) in files.into_iter().enumerate() {
        let mut reader = RunReader::open(file)?;
        if reader.next()? {
            heads.push(Reverse((reader.word.clone(), at)));
        }
        readers.push(reader);
    }
    let mut counts = WordCounts::default();
    let mut word: Vec<u8> = Vec::new();
    let mut total = 0;
    while let Some(mut head) = heads.peek_mut() {
        let Reverse((head_word, at)) = &mut *head;
        if *head_word != word || total == 0 {
            if total > 0 {
                counts.push(&word, total);
            }
            word.clone_from(head_word);
            total = 0;
        }
        let reader = &mut readers[*at];
        total += reader.count;
        if reader.next()? {
            head_word.clone_from(&reader.word);
        } else {
            std::collections::binary_heap::PeekMut::pop(head);
        }
    }
    if total > 0 {
        counts.push(&word, total);
    }
    Ok(counts)
}

/// The documents or words of a flat buffer.
pub fn pieces<'d>(data: &'d [u8], ends: &'d [i64]) -> Result<impl Iterator<Item = &'d [u8]>> {
    let increasing = ends.windows(2).all(|two| two[0] <= two[1]);
    if !increasing
        || ends.first().is_some_and(|&end| end < 0)
        || ends.last().is_some_and(|&end| end as usize > data.len())
    {
        return Err(Error::Source(format!("ends must rise from 0 to at most {} (the bytes given)", data.len())));
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    Ok(starts.zip(ends).map(|(start, &end)| &data[start as usize..end as usize]))
}

/// Locks even if another thread panicked: tables are only handed back whole.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
