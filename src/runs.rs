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
