//! Files -> documents: the loops under `piecemill.sources`.
//!
//! ```text
//! walk: a folder ─▶ files in a stable order          files: small text files ─▶ bytes + ends
//! jsonl: whole lines ─▶ one field, bytes + ends       split: text ─▶ pieces between separators
//! sequences: FASTA, FASTQ ─▶ letters of each record   alphabet: which bytes documents have
//! integers: integers ─▶ their digits, and back
//! ```
//!
//! In: paths, or buffers that Python read (and unpacked). Out: one flat buffer, where each document ends, where
//! each came from, and the [`Problem`]s. Nothing here decides whether a problem stops the run: that is the
//! caller's policy.

pub mod alphabet;
pub mod files;
pub mod integers;
mod json_line;
pub mod jsonl;
pub mod sequences;
pub mod split;
pub mod utf8;
pub mod walk;

/// How many problems one call describes; the rest is only counted. Equal to `LISTED_SKIPS` in `documents.py`,
/// so a buffer of a million broken lines costs a thousand messages.
pub const LISTED: usize = 1_000;

/// A document that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which one: the number of the file, line or piece in this call.
    pub index: u64,
    /// What was found and what was expected.
    pub reason: String,
}

/// The first [`LISTED`] problems in order, and how many there were in all.
#[derive(Debug, Default)]
pub struct Problems {
    /// The problems that are described.
    pub listed: Vec<Problem>,
    /// All of them.
    pub count: u64,
}

impl Problems {
    /// Counts a problem; `reason` is only called while there is room to list it.
    pub fn push(&mut self, index: u64, reason: impl FnOnce() -> String) {
        self.count += 1;
        if self.listed.len() < LISTED {
            self.listed.push(Problem { index, reason: reason() });
        }
    }
}

/// Documents taken out of a buffer or out of files.
#[derive(Debug, Default)]
pub struct Taken {
    /// Every document, one after another, after `before` bytes of an earlier call.
    pub data: Vec<u8>,
    /// Bytes of `data` that are not of these documents.
    pub before: usize,
    /// Where each document ends, counted from `before`.
    pub ends: Vec<i64>,
    /// Where each came from: the number of the file, or the byte at which its line or piece starts.
    pub origins: Vec<i64>,
    /// Documents of no bytes, which are left out.
    pub empty: u64,
    /// Documents that cannot be used.
    pub problems: Problems,
}

impl Taken {
    /// Closes the document that was appended to `data` since the last one; one of no bytes is counted as empty.
    fn close(&mut self, origin: i64) {
        let end = (self.data.len() - self.before) as i64;
        if end == self.ends.last().copied().unwrap_or(0) {
            self.empty += 1;
        } else {
            self.ends.push(end);
            self.origins.push(origin);
        }
    }
}

/// The one text of a number, so that equal numbers of any format are equal texts.
///
/// Whole numbers that a 64-bit integer can hold have the digits of that integer; all others the fewest digits that
/// give the same double, without an exponent. Integers of other formats are already written so.
pub fn number_text(value: f64) -> String {
    const LOWEST: f64 = -9_223_372_036_854_775_808.0;
    const ABOVE: f64 = 18_446_744_073_709_551_616.0;
    if value.fract() == 0.0 && (LOWEST..ABOVE).contains(&value) {
        (value as i128).to_string()
    } else {
        value.to_string()
    }
}

/// The group of each number, as `jsonl` gives it for the same number: the low half of the xxh3-128 of its text.
pub fn number_keys(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| xxhash_rust::xxh3::xxh3_128(number_text(*value).as_bytes()) as u64).collect()
}
