//! Which documents were seen before, by their hash; exact, and within a bound on memory.
//!
//! In: 128-bit hashes in the order of the corpus. Out: for each, whether it is the first of its kind. Recent hashes
//! are in a table; when that is full they go to disk as a sorted run, of which memory keeps one hash per page
//! (a sixteenth of a byte per document). Runs of similar length are merged, so there are only about log2 of them.
//! The plain version this must equal is a set.

use hashbrown::HashSet;
use std::fs::{File, OpenOptions, remove_file};
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const HASH: usize = 16;
/// Hashes in one page of a run: 4 KiB, what a disk reads at once.
const PAGE: usize = 256;

/// A hash is its own hash.
#[derive(Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

type Table = HashSet<u128, BuildHasherDefault<Itself>>;

/// The hashes seen so far.
pub struct Seen {
    recent: Table,
    most: usize,
    folder: PathBuf,
    runs: Vec<Run>,
    made: u64,
}

impl Seen {
    /// Nothing seen yet. Beyond `most` hashes in memory they go to files in `folder`, which have no name once they are
    /// open: they vanish with the process, whatever ends it.
    pub fn new(most: usize, folder: PathBuf) -> Self {
        Seen { recent: Table::default(), most: most.max(1), folder, runs: Vec::new(), made: 0 }
    }

    /// For each hash (low half, high half), whether it was seen neither before nor earlier in this call.
    pub fn admit(&mut self, halves: &[u64]) -> io::Result<Vec<bool>> {
        let hashes: Vec<u128> = halves.chunks_exact(2).map(|h| u128::from(h[1]) << 64 | u128::from(h[0])).collect();
        let mut new = self.not_on_disk(&hashes)?;
        for (hash, new) in hashes.iter().zip(&mut new) {
            *new = *new && self.recent.insert(*hash);
        }
        if self.recent.len() >= self.most {
            self.spill()?;
        }
        Ok(new)
    }

    /// Documents seen, and how many of them are on disk.
    pub fn len(&self) -> (u64, u64) {
        let on_disk = self.runs.iter().map(|run| run.len).sum();
        (self.recent.len() as u64 + on_disk, on_disk)
    }

    fn not_on_disk(&self, hashes: &[u128]) -> io::Result<Vec<bool>> {
        let mut new = vec![true; hashes.len()];
        if !self.runs.is_empty() {
            // In their order, so that each page is read once per call.
            let mut order: Vec<usize> = (0..hashes.len()).collect();
            order.sort_unstable_by_key(|&n| hashes[n]);
            for run in &self.runs {
                run.find(&order, hashes, &mut new)?;
            }
        }
        Ok(new)
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut hashes: Vec<u128> = std::mem::take(&mut self.recent).into_iter().collect();
        hashes.sort_unstable();
        let mut writer = RunWriter::new(self.next_path())?;
        for hash in hashes {
            writer.push(hash)?;
        }
        let mut newest = writer.finish()?;
        while let Some(last) = self.runs.pop() {
            if last.len > newest.len.saturating_mul(2) {
                self.runs.push(last);
                break;
            }
            newest = merge(last, newest, self.next_path())?;
        }
        self.runs.push(newest);
        Ok(())
    }

    fn next_path(&mut self) -> PathBuf {
        self.made += 1;
        self.folder.join(format!(".seen-{}-{}", std::process::id(), self.made))
    }
}

/// Sorted hashes on disk.
struct Run {
    file: File,
    len: u64,
    /// The first hash of each page.
    firsts: Vec<u128>,
}

impl Run {
    /// Clears `new` for every hash that is in the run; `order` is the order in which they rise.
    fn find(&self, order: &[usize], hashes: &[u128], new: &mut [bool]) -> io::Result<()> {
        let mut page = Vec::new();
        let mut held = usize::MAX;
        let mut from = 0;
        for &n in order {
            if !new[n] {
                continue;
            }
            from += self.firsts[from..].partition_point(|first| *first <= hashes[n]);
            let Some(at) = from.checked_sub(1) else { continue };
            // The page before: its first hash is not greater, the next one's is.
            from = at;
            if at != held {
                page = self.page(at)?;
                held = at;
            }
            new[n] = page.binary_search(&hashes[n]).is_err();
        }
        Ok(())
    }

    fn page(&self, at: usize) -> io::Result<Vec<u128>> {
        let first = at * PAGE;
        let count = PAGE.min(self.len as usize - first);
        let mut bytes = [0; PAGE * HASH];
        self.file.read_exact_at(&mut bytes[..count * HASH], (first * HASH) as u64)?;
        Ok(bytes[..count * HASH].chunks_exact(HASH).map(from_bytes).collect())
    }

    fn into_hashes(mut self) -> io::Result<impl FnMut() -> io::Result<Option<u128>>> {
        self.file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::with_capacity(1 << 20, self.file);
        let mut left = self.len;
        Ok(move || {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            let mut bytes = [0; HASH];
            reader.read_exact(&mut bytes)?;
            Ok(Some(from_bytes(&bytes)))
        })
    }
}

fn from_bytes(bytes: &[u8]) -> u128 {
    let mut whole = [0; HASH];
    whole.copy_from_slice(bytes);
    u128::from_le_bytes(whole)
}

struct RunWriter {
    file: BufWriter<File>,
    len: u64,
    firsts: Vec<u128>,
}

impl RunWriter {
    fn new(path: PathBuf) -> io::Result<Self> {
        let file = nameless(&path)?;
        Ok(RunWriter { file: BufWriter::with_capacity(1 << 20, file), len: 0, firsts: Vec::new() })
    }

    fn push(&mut self, hash: u128) -> io::Result<()> {
        if self.len.is_multiple_of(PAGE as u64) {
            self.firsts.push(hash);
        }
        self.len += 1;
        self.file.write_all(&hash.to_le_bytes())
    }

    fn finish(self) -> io::Result<Run> {
        Ok(Run { file: self.file.into_inner()?, len: self.len, firsts: self.firsts })
    }
}

fn nameless(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    remove_file(path)?;
    Ok(file)
}

/// One run from two; no hash is in both, as only new ones are ever admitted.
fn merge(one: Run, other: Run, path: PathBuf) -> io::Result<Run> {
    let mut writer = RunWriter::new(path)?;
    let (mut one, mut other) = (one.into_hashes()?, other.into_hashes()?);
    let (mut a, mut b) = (one()?, other()?);
    loop {
        match (a, b) {
            (Some(left), right) if right.is_none_or(|right| left < right) => {
                writer.push(left)?;
                a = one()?;
            }
            (_, Some(right)) => {
                writer.push(right)?;
                b = other()?;
            }
            (_, None) => return writer.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Hashes that repeat, from a small generator: about `kinds` different ones.
    fn stream(count: u64, kinds: u64) -> Vec<u64> {
        let mut state = 1_u64;
        let mut halves = Vec::new();
        for _ in 0..count {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let kind = (state >> 33) % kinds;
            halves.extend([kind.wrapping_mul(0x9e37_79b9_7f4a_7c15), kind.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)]);
        }
        halves
    }

    #[test]
    fn the_same_as_a_set_whatever_the_memory() -> io::Result<()> {
        let halves = stream(40_000, 9_000);
        let mut set = BTreeSet::new();
        let want: Vec<bool> = halves.chunks_exact(2).map(|h| set.insert((h[0], h[1]))).collect();
        for most in [1_000_000, 4_096, 700, 100] {
            let mut seen = Seen::new(most, std::env::temp_dir());
            let mut got = Vec::new();
            for call in halves.chunks(2 * 333) {
                got.extend(seen.admit(call)?);
            }
            assert_eq!(got, want, "with {most} in memory");
            assert_eq!(seen.len().0, set.len() as u64);
            assert_eq!(seen.len().1 > 0, most < 9_000);
            assert!(seen.runs.len() < 12, "{} runs", seen.runs.len());
        }
        Ok(())
    }
}
