//! Ids -> bytes, by a table that is built once.

use crate::error::{Error, Result};

/// Bytes of all ids one after another, and where those of each end.
struct Table {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Table {
    fn new((bytes, ends): (&[u8], &[i64])) -> Table {
        Table { bytes: bytes.to_vec(), ends: ends.iter().map(|&end| end as usize).collect() }
    }

    #[inline(always)]
    fn get(&self, id: usize) -> &[u8] {
        &self.bytes[if id == 0 { 0 } else { self.ends[id - 1] }..self.ends[id]]
    }
}

/// The bytes of every id.
pub struct Decoder {
    tokens: Table,
    /// What the first id that has any bytes gives instead.
    first: Option<Table>,
    /// Ids below the largest that have no token, in order.
    missing: Vec<usize>,
}

impl Decoder {
    /// `tokens` and `first` are bytes of all ids one after another, and where those of each end.
    pub fn new(tokens: (&[u8], &[i64]), first: Option<(&[u8], &[i64])>, mut missing: Vec<usize>) -> Decoder {
        missing.sort_unstable();
        Decoder { tokens: Table::new(tokens), first: first.map(Table::new), missing }
    }

    /// Appends the bytes of `ids`; an error names the first that does not exist.
    pub fn decode(&self, ids: impl Iterator<Item = i64>, out: &mut Vec<u8>) -> Result<()> {
        let mut first = self.first.as_ref();
        for (place, id) in ids.enumerate() {
            let index = usize::try_from(id).unwrap_or(usize::MAX);
            if index >= self.tokens.ends.len() {
                return Err(Error::Tokenizer(format!(
                    "decode: ids[{place}] is {id}; expected 0 to {}.",
                    self.tokens.ends.len().saturating_sub(1)
                )));
            }
            let bytes = self.tokens.get(index);
            if bytes.is_empty() {
                if self.missing.binary_search(&index).is_ok() {
                    return Err(Error::Tokenizer(format!(
                        "decode: ids[{place}] is {id}, which has no token; this vocabulary has gaps."
                    )));
                }
                continue;
            }
            match first.take() {
                Some(first) => out.extend_from_slice(first.get(index)),
                None => out.extend_from_slice(bytes),
            }
        }
        Ok(())
    }
}
