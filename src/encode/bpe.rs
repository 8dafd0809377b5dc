//! BPE as a model of words: bytes or characters, merged in lockstep or, where they are many, from the left.

use super::batch::{Model, Scratch, word_hash};
use super::isa::{Isa, Portable};
use super::lockstep::{GROUP, LONGEST, Lanes, merge};
use super::long::LongWords;
use super::pairs::NOBODY;
use super::vocabulary::{Symbols, Unit, character_len};
use crate::error::{Error, Result};
use std::sync::OnceLock;

/// The tokens that a whole word can be.
pub struct WholeWords {
    /// Hash bits above, symbol + 1 below; 0 is empty.
    slots: Vec<u64>,
}

const SYMBOL_BITS: u32 = 24;

impl WholeWords {
    /// All tokens, or only those whose bytes encode to themselves.
    fn new(symbols: &Symbols, all: bool) -> WholeWords {
        let mut slots = vec![0; (symbols.len() * 2).next_power_of_two().max(16)];
        for symbol in (0..symbols.len() as u32).filter(|&symbol| all || symbols.is_itself(symbol)) {
            let hash = word_hash(symbols.bytes(symbol));
            let mut at = hash as usize & (slots.len() - 1);
            while slots[at] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = hash >> SYMBOL_BITS << SYMBOL_BITS | u64::from(symbol + 1);
        }
        WholeWords { slots }
    }

    #[inline(always)]
    fn get(&self, symbols: &Symbols, word: &[u8], hash: u64) -> Option<u32> {
        let mut at = hash as usize & (self.slots.len() - 1);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if slot >> SYMBOL_BITS == hash >> SYMBOL_BITS {
                let symbol = (slot & ((1 << SYMBOL_BITS) - 1)) as u32 - 1;
                if symbols.bytes(symbol) == word {
                    return Some(symbols.ids[symbol as usize]);
                }
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn slot(&self, hash: u64) -> *const u8 {
        (&raw const self.slots[hash as usize & (self.slots.len() - 1)]).cast()
    }
}

/// Byte-level BPE.
pub struct Bytes {
    symbols: Symbols,
    symbol_of: [u32; 256],
    /// What two neighbouring bytes merge into, or [`NOBODY`].
    first_merge: Vec<u32>,
    whole: WholeWords,
    whole_words: bool,
    long: OnceLock<LongWords>,
}

impl Bytes {
    /// See `Symbols::new`; with `whole_words`, a word that is exactly a token is that token before any merging.
    pub fn new(tokens: &[&[u8]], ids: &[u32], merges: Option<&[[u32; 2]]>, whole_words: bool) -> Result<Bytes> {
        let symbols = Symbols::new(tokens, ids, merges, Unit::Byte)?;
        let mut symbol_of = [NOBODY; 256];
        for (bytes, symbol) in symbols.initial() {
            symbol_of[usize::from(bytes[0])] = symbol;
        }
        // UTF-8 has no byte 0xC0, 0xC1 or from 0xF5 on.
        let missing = (0..=0xf4).find(|&byte| symbol_of[byte] == NOBODY && byte != 0xc0 && byte != 0xc1);
        if let Some(byte) = missing {
            return Err(Error::Tokenizer(format!(
                "the vocabulary has no token for byte {byte:#04x}; expected one for every byte of UTF-8."
            )));
        }
        let first_merge = (0..1 << 16)
            .map(|two: usize| symbols.pairs.get(Portable, symbol_of[two & 0xff], symbol_of[two >> 8]))
            .collect();
        let whole = WholeWords::new(&symbols, whole_words);
        Ok(Bytes { symbols, symbol_of, first_merge, whole, whole_words, long: OnceLock::new() })
    }

    /// Whether a word that is exactly a token is that token before any merging.
    pub fn whole_words(&self) -> bool {
        self.whole_words
    }

    /// The largest id of any token.
    pub fn largest_id(&self) -> u32 {
        self.symbols.ids.iter().copied().max().unwrap_or(0)
    }

    /// Whether a token contains these two bytes side by side: if none does, they are never in one token.
    pub fn joined(&self) -> Box<[[u64; 4]; 256]> {
        let mut joined = Box::new([[0; 4]; 256]);
        for symbol in 0..self.symbols.len() as u32 {
            for pair in self.symbols.bytes(symbol).windows(2) {
                joined[usize::from(pair[0])][usize::from(pair[1]) / 64] |= 1 << (pair[1] % 64);
            }
        }
        joined
    }
}

/// Merges a group of words, each loaded by `load`, and appends their ids.
#[inline(always)]
fn merge_group<I: Isa, const LANES: usize>(
    isa: I,
    symbols: &Symbols,
    words: &[&[u8]],
    ids: &mut Vec<u32>,
    ends: &mut [usize; GROUP],
    load: impl Fn(&mut Lanes<LANES>, &[u8]),
) {
    let mut group = [const { Lanes::<LANES>::EMPTY }; GROUP];
    for (lanes, word) in group.iter_mut().zip(words) {
        load(lanes, word);
    }
    merge(isa, &symbols.pairs, &mut group[..words.len()]);
    for (lanes, end) in group[..words.len()].iter().zip(ends) {
        ids.extend(lanes.symbols().map(|symbol| symbols.ids[symbol as usize]));
        *end = ids.len();
    }
}

impl Model for Bytes {
    #[inline(always)]
    fn units(&self, word: &[u8]) -> usize {
        word.len()
    }

    #[inline(always)]
    fn whole(&self, word: &[u8], hash: u64) -> Option<u32> {
        self.whole.get(&self.symbols, word, hash)
    }

    #[inline(always)]
    fn whole_slot(&self, hash: u64) -> *const u8 {
        self.whole.slot(hash)
    }

    #[inline(always)]
    fn encode_group<I: Isa, const LANES: usize>(
        &self,
        isa: I,
        words: &[&[u8]],
        ids: &mut Vec<u32>,
        ends: &mut [usize; GROUP],
    ) {
        merge_group::<I, LANES>(isa, &self.symbols, words, ids, ends, |lanes, word| {
            lanes.load(word.iter().enumerate().map(|(at, &byte)| {
                let rank = match word.get(at + 1) {
                    Some(&next) => self.first_merge[usize::from(byte) | usize::from(next) << 8],
                    None => NOBODY,
                };
                (self.symbol_of[usize::from(byte)], rank)
            }));
        });
    }

    fn encode_alone(&self, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let long = self.long.get_or_init(|| LongWords::new(&self.symbols));
        let units = word.iter().map(|&byte| self.symbol_of[usize::from(byte)]);
        long.encode(&self.symbols, word, units, &mut scratch.long, |symbol| ids.push(self.symbols.ids[symbol as usize]));
    }
}

const SPACE: char = '\u{2581}';

/// BPE over characters, as SentencePiece does it. A space in a text and U+2581 are the same.
pub struct Characters {
    symbols: Symbols,
    symbol_of: CharacterTable,
    joined: Joined,
    /// What is written for a character without a token.
    unknown: Unknown,
    whole: WholeWords,
    long: OnceLock<LongWords>,
}

/// What becomes of a character without a token.
pub enum Unknown {
    /// The ids of its bytes.
    Bytes(Box<[u32; 256]>),
    /// This id; with `fuse`, once for several in a row.
    Id { id: u32, fuse: bool },
}

impl Characters {
    /// See `Symbols::new`; `tokens` spell a space as U+2581.
    pub fn new(tokens: &[&[u8]], ids: &[u32], merges: Option<&[[u32; 2]]>, unknown: Unknown) -> Result<Characters> {
        // A space instead of U+2581, so that most texts need not be rewritten. A token with a real space can never be met.
        let mut spelled: Vec<Vec<u8>> = vec![];
        for (number, token) in tokens.iter().enumerate() {
            let text = std::str::from_utf8(token).map_err(|_| {
                Error::Tokenizer(format!("token {number} is not valid UTF-8; expected tokens made of characters."))
            })?;
            spelled.push(match text.contains(' ') {
                true => format!("\u{0}\u{0}{number}").into_bytes(),
                false => text.replace(SPACE, " ").into_bytes(),
            });
        }
        let spelled: Vec<&[u8]> = spelled.iter().map(Vec::as_slice).collect();
        let symbols = Symbols::new(&spelled, ids, merges, Unit::Character)?;
        let mut symbol_of = CharacterTable::default();
        for (bytes, symbol) in symbols.initial() {
            symbol_of.insert(code_point(bytes).0, symbol);
        }
        if let Some(symbol) = symbol_of.get(u32::from(' ')) {
            symbol_of.insert(u32::from(SPACE), symbol);
        }
        let fuses = matches!(unknown, Unknown::Id { fuse: true, .. });
        let mut joined = Joined::new(&symbols, fuses);
        if fuses {
            let unknown = (0..0x80).filter(|&character| symbol_of.get(character).is_none());
            let row = unknown.clone().fold(0, |row, character| row | 1u128 << character);
            unknown.for_each(|character| joined.ascii[character as usize] |= row);
        }
        let whole = WholeWords::new(&symbols, false);
        Ok(Characters { symbols, symbol_of, joined, unknown, whole, long: OnceLock::new() })
    }

    /// The largest id of any token, or of an unknown character.
    pub fn largest_id(&self) -> u32 {
        let unknown = match &self.unknown {
            Unknown::Bytes(of_bytes) => of_bytes.iter().copied().max().unwrap_or(0),
            Unknown::Id { id, .. } => *id,
        };
        self.symbols.ids.iter().copied().max().unwrap_or(0).max(unknown)
    }

    /// Where the word that starts at `at` ends: before the next character that no token joins to the one before it.
    #[inline(always)]
    pub fn end(&self, text: &[u8], at: usize) -> usize {
        let (mut last, len) = code_point(&text[at..]);
        let mut end = at + len;
        while end < text.len() {
            let byte = text[end];
            if last < 0x80 && byte < 0x80 {
                if !self.joined.ascii(last as u8, byte) {
                    break;
                }
                (last, end) = (u32::from(byte), end + 1);
                continue;
            }
            let (next, len) = code_point(&text[end..]);
            if !self.joined.wide(last, next, &self.symbol_of) {
                break;
            }
            (last, end) = (next, end + len);
        }
        end
    }
}

impl Model for Characters {
    #[inline(always)]
    fn units(&self, word: &[u8]) -> usize {
        // A word is made of known characters, or of one unknown one (or several that are fused).
        if self.symbol_of.get(code_point(word).0).is_none() || word.len() > 4 * LONGEST {
            return usize::MAX;
        }
        word.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
    }

    #[inline(always)]
    fn whole(&self, word: &[u8], hash: u64) -> Option<u32> {
        self.whole.get(&self.symbols, word, hash)
    }

    #[inline(always)]
    fn whole_slot(&self, hash: u64) -> *const u8 {
        self.whole.slot(hash)
    }

    #[inline(always)]
    fn encode_group<I: Isa, const LANES: usize>(
        &self,
        isa: I,
        words: &[&[u8]],
        ids: &mut Vec<u32>,
        ends: &mut [usize; GROUP],
    ) {
        merge_group::<I, LANES>(isa, &self.symbols, words, ids, ends, |lanes, word| {
            let mut at = 0;
            let mut next = self.symbol_at(word, &mut at);
            lanes.load(std::iter::from_fn(|| {
                let symbol = next?;
                next = self.symbol_at(word, &mut at);
                Some((symbol, next.map_or(NOBODY, |next| self.symbols.pairs.get(isa, symbol, next))))
            }));
        });
    }

    fn encode_alone(&self, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if self.symbol_of.get(code_point(word).0).is_none() {
            match &self.unknown {
                Unknown::Bytes(of_bytes) => ids.extend(word.iter().map(|&byte| of_bytes[usize::from(byte)])),
                Unknown::Id { id, .. } => ids.push(*id),
            }
            return;
        }
        // Tokens are looked up by bytes below, and there a space is a space.
        let text = String::from_utf8_lossy(word);
        let plain = if text.contains(SPACE) { text.replace(SPACE, " ").into_bytes() } else { text.into_owned().into_bytes() };
        let long = self.long.get_or_init(|| LongWords::new(&self.symbols));
        let mut at = 0;
        let units = std::iter::from_fn(|| self.symbol_at(&plain, &mut at));
        long.encode(&self.symbols, &plain, units, &mut scratch.long, |symbol| {
            ids.push(self.symbols.ids[symbol as usize]);
        });
    }
}

impl Characters {
    #[inline(always)]
    fn symbol_at(&self, word: &[u8], at: &mut usize) -> Option<u32> {
        let (character, len) = code_point(word.get(*at..).filter(|rest| !rest.is_empty())?);
        *at += len;
        Some(self.symbol_of.get(character).unwrap_or(NOBODY))
    }
}

/// The first character of `text`, which is not empty and valid UTF-8, and its length.
#[inline(always)]
fn code_point(text: &[u8]) -> (u32, usize) {
    let first = text[0];
    let len = character_len(first);
    let next = |n: usize| u32::from(text.get(n).copied().unwrap_or(0) & 0x3f);
    let first = u32::from(first);
    let character = match len {
        1 => first,
        2 => (first & 0x1f) << 6 | next(1),
        3 => (first & 0x0f) << 12 | next(1) << 6 | next(2),
        _ => (first & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3),
    };
    (character, len)
}

/// The symbol of each character, in pages of 256.
#[derive(Default)]
struct CharacterTable {
    pages: Vec<u16>,
    symbols: Vec<[u32; 256]>,
}

impl CharacterTable {
    fn insert(&mut self, character: u32, symbol: u32) {
        if self.pages.is_empty() {
            self.pages = vec![u16::MAX; 0x1100];
        }
        let page = &mut self.pages[character as usize >> 8];
        if *page == u16::MAX {
            *page = self.symbols.len() as u16;
            self.symbols.push([NOBODY; 256]);
        }
        self.symbols[usize::from(*page)][character as usize & 0xff] = symbol;
    }

    #[inline(always)]
    fn get(&self, character: u32) -> Option<u32> {
        let page = *self.pages.get(character as usize >> 8)?;
        let symbol = self.symbols.get(usize::from(page))?[character as usize & 0xff];
        (symbol != NOBODY).then_some(symbol)
    }
}

/// Which characters stand side by side in some token. Between two that do not, a text can be cut: no merge will ever
/// cross that place.
struct Joined {
    ascii: Box<[u128; 128]>,
    /// Pairs of which one at least is beyond ASCII; open addressing, 0 is empty.
    wide: Vec<u64>,
    /// Unknown characters in a row belong together.
    fuse_unknown: bool,
}

impl Joined {
    fn new(symbols: &Symbols, fuse_unknown: bool) -> Joined {
        let mut ascii = Box::new([0; 128]);
        let mut wide = std::collections::HashSet::new();
        for symbol in 0..symbols.len() as u32 {
            let mut rest = symbols.bytes(symbol);
            let mut last = None;
            while !rest.is_empty() {
                let (character, len) = code_point(rest);
                rest = &rest[len..];
                if let Some(last) = last.replace(character) {
                    if last < 0x80 && character < 0x80 {
                        ascii[last as usize] |= 1u128 << character;
                    } else {
                        wide.insert(pair(last, character));
                    }
                }
            }
        }
        let mut table = vec![0; (wide.len() * 3).next_power_of_two().max(16)];
        let mut pairs: Vec<u64> = wide.into_iter().collect();
        pairs.sort_unstable();
        for pair in pairs {
            let mut at = place(pair, table.len());
            while table[at] != 0 {
                at = (at + 1) & (table.len() - 1);
            }
            table[at] = pair;
        }
        Joined { ascii, wide: table, fuse_unknown }
    }

    #[inline(always)]
    fn ascii(&self, left: u8, right: u8) -> bool {
        self.ascii[usize::from(left & 0x7f)] >> right & 1 != 0
    }

    #[inline(always)]
    fn wide(&self, left: u32, right: u32, symbol_of: &CharacterTable) -> bool {
        // U+2581 is the same as a space.
        let plain = |character: u32| if character == u32::from(SPACE) { u32::from(' ') } else { character };
        let (left, right) = (plain(left), plain(right));
        if left < 0x80 && right < 0x80 {
            return self.ascii(left as u8, right as u8);
        }
        if self.fuse_unknown && symbol_of.get(left).is_none() && symbol_of.get(right).is_none() {
            return true;
        }
        let pair = pair(left, right);
        let mut at = place(pair, self.wide.len());
        loop {
            match self.wide[at] {
                0 => return false,
                found if found == pair => return true,
                _ => at = (at + 1) & (self.wide.len() - 1),
            }
        }
    }
}

#[inline(always)]
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[inline(always)]
fn place(pair: u64, len: usize) -> usize {
    (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (len - 1)
}
