//! Bytes as they are: which have a token, and which stand side by side in some token.
//!
//! A vocabulary may have tokens for some bytes only (DNA: four of them). A byte without one is an error that names it.
//! A document that is not UTF-8 is cut between bytes that no token has side by side, as `joined` cuts text between
//! characters.

use crate::error::{Error, Result};

/// The bytes that have a token.
pub struct Alphabet {
    known: Box<[bool; 256]>,
    full: bool,
    /// Whether only bytes are missing that UTF-8 never has.
    has_utf8: bool,
}

impl Alphabet {
    /// Of the bytes for which `has` is true.
    pub fn new(has: impl Fn(u8) -> bool) -> Alphabet {
        let mut known = Box::new([false; 256]);
        (0..=255).for_each(|byte| known[usize::from(byte)] = has(byte));
        let has_utf8 = (0..=0xf4).all(|byte| known[byte] || matches!(byte, 0xc0 | 0xc1));
        Alphabet { full: known.iter().all(|&known| known), known, has_utf8 }
    }

    /// Fails with the first byte of `text` that has no token; `is_utf8` says that it is valid UTF-8.
    pub fn check(&self, text: &[u8], is_utf8: bool) -> Result<()> {
        if self.full || is_utf8 && self.has_utf8 {
            return Ok(());
        }
        match text.iter().position(|&byte| !self.known[usize::from(byte)]) {
            Some(at) => Err(Error::Tokenizer(self.describe(text, at))),
            None => Ok(()),
        }
    }

    fn describe(&self, text: &[u8], at: usize) -> String {
        let before = String::from_utf8_lossy(&text[at.saturating_sub(12)..at]).into_owned();
        let found = match String::from_utf8_lossy(&text[at..text.len().min(at + 4)]).chars().next() {
            Some(character) if character != char::REPLACEMENT_CHARACTER && !character.is_control() => {
                format!("{character:?} (byte {:#04x})", text[at])
            }
            _ => format!("byte {:#04x}", text[at]),
        };
        let place = if at == 0 { "at its start".into() } else { format!("after {before:?}") };
        let known: Vec<u8> = (0..=255).filter(|&byte| self.known[usize::from(byte)]).collect();
        let named = if known.iter().all(u8::is_ascii_graphic) && known.len() <= 64 {
            String::from_utf8_lossy(&known).into_owned()
        } else {
            format!("{} of the 256 bytes", known.len())
        };
        format!("{found} {place} is not in the alphabet of this vocabulary ({named}).")
    }
}

/// Which bytes stand side by side in some token.
pub struct Adjacent(Box<[[u64; 4]; 256]>);

impl Adjacent {
    /// Of the tokens.
    pub fn new<'t>(tokens: impl Iterator<Item = &'t [u8]>) -> Adjacent {
        let mut pairs = Box::new([[0; 4]; 256]);
        for pair in tokens.flat_map(|token| token.windows(2)) {
            pairs[usize::from(pair[0])][usize::from(pair[1]) / 64] |= 1 << (pair[1] % 64);
        }
        Adjacent(pairs)
    }

    /// The first place after `at` where `text` can be cut, because no token crosses it.
    pub fn end(&self, text: &[u8], at: usize) -> usize {
        let joined = |pair: &[u8]| self.0[usize::from(pair[0])][usize::from(pair[1]) / 64] >> (pair[1] % 64) & 1 != 0;
        text[at..].windows(2).position(|pair| !joined(pair)).map_or(text.len(), |found| at + found + 1)
    }
}
