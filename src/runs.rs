//! Sorted runs: items written in the order of their keys, and merged back.
//!
//! In: items that somebody sorted, written to an unnamed file ([`SpilledRun`]) or to any other writer. Out: the items of
//! all runs in the order of their keys, equal keys in the order of the runs. Merging holds one item and one buffer of
//! each run, whatever their length. The plain version this must equal is a stable sort of all runs end to end.
//!
//! Counting spills its words to runs; deduplication keeps the hashes of each piece of a corpus as one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a run is made of: a key, and what belongs to it.
pub trait Item: Default {
    /// Compares the keys alone.
    fn order(&self, other: &Self) -> Ordering;

    /// Appends the item to a run.
    fn write(&self, out: &mut impl Write) -> io::Result<()>;

    /// Becomes the next item of a run, which has one. A run that ends inside the item is an error.
    fn read(&mut self, from: &mut impl BufRead) -> io::Result<()>;
}

/// Calls `each` with the items of all `runs` and the number of the run each is from: in the order of their keys,
/// equal ones in the order of the runs.
pub fn merge<T: Item, R: BufRead>(
    runs: impl IntoIterator<Item = R>,
    mut each: impl FnMut(&T, usize) -> io::Result<()>,
) -> io::Result<()> {
    let mut heads = BinaryHeap::new();
    for (number, run) in runs.into_iter().enumerate() {
        let mut head = Head { item: T::default(), number, run };
        if head.advance()? {
            heads.push(head);
        }
    }
    while let Some(mut head) = heads.peek_mut() {
        each(&head.item, head.number)?;
        if !head.advance()? {
            PeekMut::pop(head);
        }
    }
    Ok(())
}

/// The first item of a run that was not merged yet. The greatest head is the one to take.
struct Head<T, R> {
    item: T,
    number: usize,
    run: R,
}

impl<T: Item, R: BufRead> Head<T, R> {
    /// Goes on to the next item; false at the end of the run.
    fn advance(&mut self) -> io::Result<bool> {
        if self.run.fill_buf()?.is_empty() {
            return Ok(false);
        }
        self.item.read(&mut self.run).map(|()| true)
    }
}

impl<T: Item, R> Ord for Head<T, R> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.item.order(&self.item).then(other.number.cmp(&self.number))
    }
}

impl<T: Item, R> PartialOrd for Head<T, R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Item, R> PartialEq for Head<T, R> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Item, R> Eq for Head<T, R> {}

/// A run in a file without a name: it goes when the process does, however that ends.
pub struct SpilledRun {
    file: File,
    /// Bytes in the file.
    pub bytes: u64,
}

impl SpilledRun {
    /// A writer for items to come, in `folder`.
    pub fn create(folder: &Path) -> io::Result<BufWriter<File>> {
        Ok(BufWriter::with_capacity(1 << 20, unnamed_file(folder)?))
    }

    /// The run, now that all its items are written.
    pub fn finish(out: BufWriter<File>) -> io::Result<Self> {
        let mut file = out.into_inner()?;
        Ok(SpilledRun { bytes: file.stream_position()?, file })
    }

    /// The items from the first on.
    pub fn open(mut self) -> io::Result<BufReader<File>> {
        self.file.rewind()?;
        Ok(BufReader::with_capacity(1 << 16, self.file))
    }
}

/// Has no name from the start where the system can do that: then no kill at any moment leaves one behind.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600);
        if let Ok(file) = options.open(folder) {
            return Ok(file);
        }
        // File systems without O_TMPFILE, and every real error, go on below.
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let path = folder.join(format!("piecemill-{}-{}.run", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        match File::options().read(true).write(true).create_new(true).open(&path) {
            // Containers that share a folder can have the same process number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Clone, Debug, PartialEq)]
    struct Pair(u32, u32);

    impl Item for Pair {
        fn order(&self, other: &Self) -> Ordering {
            self.0.cmp(&other.0)
        }
        fn write(&self, out: &mut impl Write) -> io::Result<()> {
            out.write_all(&self.0.to_le_bytes())?;
            out.write_all(&self.1.to_le_bytes())
        }
        fn read(&mut self, from: &mut impl BufRead) -> io::Result<()> {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes)?;
            self.0 = u32::from_le_bytes(bytes);
            from.read_exact(&mut bytes)?;
            self.1 = u32::from_le_bytes(bytes);
            Ok(())
        }
    }

    /// Runs of different lengths, some of them empty, with keys that repeat within and between them.
    fn sorted_runs(count: u32) -> Vec<Vec<Pair>> {
        let mut state = u64::from(count);
        let mut next = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        (0..count)
            .map(|_| {
                let length = next(60) as u32;
                let mut run: Vec<Pair> = (0..length).map(|value| Pair(next(40) as u32, value)).collect();
                run.sort_by(Pair::order);
                run
            })
            .collect()
    }

    #[test]
    fn merging_is_a_stable_sort_of_the_runs_end_to_end() -> io::Result<()> {
        for count in [0, 1, 2, 3, 17, 100] {
            let runs = sorted_runs(count);
            let numbered = runs.iter().enumerate().flat_map(|(number, run)| run.iter().map(move |item| (item, number)));
            let mut want: Vec<(Pair, usize)> = numbered.map(|(item, number)| (item.clone(), number)).collect();
            want.sort_by(|(one, _), (other, _)| one.order(other));
            let mut spilled = Vec::new();
            for run in &runs {
                let mut out = SpilledRun::create(&std::env::temp_dir())?;
                run.iter().try_for_each(|item| item.write(&mut out))?;
                let run_on_disk = SpilledRun::finish(out)?;
                assert_eq!(run_on_disk.bytes, 8 * run.len() as u64);
                spilled.push(run_on_disk.open()?);
            }
            let mut got = Vec::new();
            merge(spilled, |item: &Pair, number| {
                got.push((item.clone(), number));
                Ok(())
            })?;
            assert_eq!(got, want);
        }
        Ok(())
    }

    #[test]
    fn a_run_that_ends_inside_an_item_is_an_error() {
        let runs = [[1, 0, 0, 0, 9, 0, 0].as_slice()];
        let merged = merge(runs, |_: &Pair, _| Ok(()));
        assert_eq!(merged.map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
    }
}
