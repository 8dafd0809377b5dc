//! Later copies of documents, by their hash.
//!
//! In: the 128-bit hashes of the documents of each piece of a corpus. Out: the documents that an earlier one equals.
//! [`PieceHashes::sort`] makes a piece's run: its distinct hashes, sorted, each with the first document that has it.
//! [`later_copies`] merges the runs of all pieces, or the same range of each: of every hash the first run keeps its
//! document. So a hash is at most once in a run, and a range is about as long as its share of all hashes, however often
//! a document was copied. The plain version this must equal is a set (`tests/test_dedup.py`).

use crate::runs::{Item, merge};
use std::cmp::Ordering;
use std::io::{self, BufRead, Write};

/// Bytes of one item of a run.
pub const ITEM_BYTES: usize = 20;
/// The first bits of a hash choose its range: a file holds where each of the `2^PREFIX_BITS` ranges starts.
pub const PREFIX_BITS: u32 = 12;

/// A hash and the number of the document, in its piece, that has it.
#[derive(Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Hashed {
    high: u64,
    low: u64,
    document: u32,
}

impl Hashed {
    fn same(&self, other: &Self) -> bool {
        (self.high, self.low) == (other.high, other.low)
    }
}

impl Item for Hashed {
    fn order(&self, other: &Self) -> Ordering {
        (self.high, self.low).cmp(&(other.high, other.low))
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0; ITEM_BYTES];
        bytes[..8].copy_from_slice(&self.high.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.low.to_le_bytes());
        bytes[16..].copy_from_slice(&self.document.to_le_bytes());
        out.write_all(&bytes)
    }

    fn read(&mut self, from: &mut impl BufRead) -> io::Result<()> {
        let mut wide = [0; 8];
        from.read_exact(&mut wide)?;
        self.high = u64::from_le_bytes(wide);
        from.read_exact(&mut wide)?;
        self.low = u64::from_le_bytes(wide);
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes)?;
        self.document = u32::from_le_bytes(bytes);
        Ok(())
    }
}

/// The hashes of one piece, as they are kept on disk.
pub struct PieceHashes {
    /// How many items of the run come before each range, and how many there are: `2^PREFIX_BITS + 1` numbers.
    pub starts: Vec<u32>,
    /// The run: `ITEM_BYTES` for each distinct hash (high half, low half, document; little-endian).
    pub run: Vec<u8>,
    /// The documents that an earlier one of this piece equals, rising.
    pub copies: Vec<u32>,
}

impl PieceHashes {
    /// Sorts the hashes (low half, high half) of documents 0, 1, 2, ...; fewer than 2^32 of them.
    pub fn sort(halves: &[u64]) -> Self {
        // Into ranges first, then each by itself: a range of 64 hashes sorts in the nearest cache.
        let range = |high: u64| (high >> (64 - PREFIX_BITS)) as usize;
        let mut next = vec![0; (1 << PREFIX_BITS) + 1];
        halves.chunks_exact(2).for_each(|half| next[range(half[1]) + 1] += 1);
        (1..next.len()).for_each(|range| next[range] += next[range - 1]);
        let borders = next.clone();
        let mut hashes = vec![Hashed::default(); halves.len() / 2];
        for (document, half) in (0..).zip(halves.chunks_exact(2)) {
            let place = &mut next[range(half[1])];
            hashes[*place] = Hashed { high: half[1], low: half[0], document };
            *place += 1;
        }
        borders.windows(2).for_each(|range| hashes[range[0]..range[1]].sort_unstable());
        let mut copies = Vec::new();
        hashes.dedup_by(|later, first| {
            let same = later.same(first);
            if same {
                copies.push(later.document);
            }
            same
        });
        copies.sort_unstable();
        let before = |prefix: usize| hashes.partition_point(|hash| range(hash.high) < prefix) as u32;
        let starts = (0..=1 << PREFIX_BITS).map(before).collect();
        let mut run = Vec::with_capacity(hashes.len() * ITEM_BYTES);
        for hash in &hashes {
            // Writing to a vector cannot fail.
            let _ = hash.write(&mut run);
        }
        PieceHashes { starts, run, copies }
    }
}

/// The documents whose hash an earlier one of `runs` holds too: the rising numbers of each run's documents, end to end,
/// and where those of each run start, and the last end.
pub fn later_copies(runs: &[&[u8]]) -> io::Result<(Vec<u32>, Vec<i64>)> {
    let mut copies = vec![Vec::new(); runs.len()];
    let mut first: Option<Hashed> = None;
    merge(runs.iter().copied(), |hash: &Hashed, run| {
        match &first {
            Some(first) if first.same(hash) => copies[run].push(hash.document),
            _ => first = Some(*hash),
        }
        Ok(())
    })?;
    let (mut documents, mut starts) = (Vec::new(), vec![0]);
    for mut copies in copies {
        copies.sort_unstable();
        documents.append(&mut copies);
        starts.push(documents.len() as i64);
    }
    Ok((documents, starts))
}
