//! BPE as a model of words: bytes or characters, merged in lockstep or, where they are many, from the left.

use super::alone::Alone;
use super::alphabet::{Adjacent, Alphabet};
use super::batch::{Model, Scratch};
use super::isa::Isa;
use super::joined::{Joined, SPACE, code_point};
use super::lockstep::{GROUP, Group, LONGEST};
use super::long::Long;
use super::pairs::NOBODY;
use super::vocabulary::{Symbols, Unit};
use super::whole::WholeWords;
use crate::error::{Error, Result};

/// Byte-level BPE.
pub struct Bytes {
    symbols: Symbols,
    symbol_of: [u32; 256],
    alphabet: Alphabet,
    /// What two neighbouring bytes merge into, or [`NOBODY`].
    first_merge: Vec<u32>,
    whole: WholeWords,
    whole_words: bool,
    joined: Joined,
    adjacent: Adjacent,
    long: Long,
}

impl Bytes {
    /// See `Symbols::new`; with `whole_words`, a word that is exactly a token is that token before any merging.
    pub fn new(tokens: &[&[u8]], ids: &[u32], merges: Option<&[[u32; 2]]>, whole_words: bool) -> Result<Bytes> {
        let symbols = Symbols::new(tokens, ids, merges, Unit::Byte)?;
        let mut symbol_of = [NOBODY; 256];
        for (bytes, symbol) in symbols.initial() {
            symbol_of[usize::from(bytes[0])] = symbol;
        }
        let alphabet = Alphabet::new(|byte| symbol_of[usize::from(byte)] != NOBODY);
        let first_merge =
            (0..1 << 16).map(|two: usize| symbols.pairs.get(symbol_of[two & 0xff], symbol_of[two >> 8])).collect();
        let whole = WholeWords::new(symbols.whole(whole_words));
        let all = 0..symbols.len() as u32;
        let only_words = all.clone().filter(|&symbol| whole_words && !symbols.is_itself(symbol));
        let only_words = only_words.map(|symbol| symbols.bytes(symbol));
        let joined = Joined::new(all.map(|symbol| symbols.bytes(symbol)), false, only_words);
        let adjacent = Adjacent::new((0..symbols.len() as u32).map(|symbol| symbols.bytes(symbol)));
        // With tokens that only a whole word can be, a part of a word must not be taken for a word.
        let whole_words = whole_words && (0..symbols.len() as u32).any(|symbol| !symbols.is_itself(symbol));
        Ok(Bytes {
            symbols,
            symbol_of,
            alphabet,
            first_merge,
            whole,
            whole_words,
            joined,
            adjacent,
            long: Long::default(),
        })
    }

    /// Where a word may be cut without a change of its ids.
    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    /// The same for documents that are not UTF-8; None if nowhere.
    pub fn adjacent(&self) -> Option<&Adjacent> {
        (!self.whole_words).then_some(&self.adjacent)
    }

    /// The bytes that have a token.
    pub fn alphabet(&self) -> &Alphabet {
        &self.alphabet
    }

    /// The largest id of any token.
    pub fn largest_id(&self) -> u32 {
        self.symbols.ids.all().iter().copied().max().unwrap_or(0)
    }

    /// Its symbols, for an engine that merges elsewhere.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }
}

impl Symbols {
    /// The bytes and the id of each token that a whole word can be: all, or only those that encode to themselves.
    fn whole(&self, all: bool) -> impl Iterator<Item = (&[u8], u32)> {
        (0..self.len() as u32)
            .filter(move |&symbol| all || self.is_itself(symbol))
            .map(|symbol| (self.bytes(symbol), self.ids.get(symbol)))
    }

    /// Merges the words of a group and writes their ids.
    #[inline(always)]
    fn merge_group<I: Isa, const LANES: usize>(
        &self,
        isa: I,
        group: &mut Group<LANES>,
        words: usize,
        ids: &mut [u32],
        ends: &mut [usize; GROUP],
    ) {
        isa.merge(&self.pairs, group, words);
        let mut at = 0;
        for (k, end) in ends[..words].iter_mut().enumerate() {
            at = group.write(isa, k, &self.ids, ids, at);
            *end = at;
        }
    }
}

impl Model for Bytes {
    #[inline(always)]
    fn units(&self, word: &[u8]) -> usize {
        word.len()
    }

    fn touch(&self) {
        self.symbols.pairs.touch();
    }

    #[inline(always)]
    fn whole(&self) -> &WholeWords {
        &self.whole
    }

    #[inline(always)]
    fn encode_group<I: Isa, const LANES: usize>(
        &self,
        isa: I,
        words: &[&[u8]],
        group: &mut Group<LANES>,
        _: &mut Scratch,
        ids: &mut [u32],
        ends: &mut [usize; GROUP],
    ) {
        group.begin();
        for (k, word) in words.iter().enumerate() {
            assert!(!word.is_empty() && word.len() + 2 <= LANES);
            let mut byte = word[0];
            for place in 0..word.len() - 1 {
                let next = word[place + 1];
                let merged = self.first_merge[usize::from(byte) | usize::from(next) << 8];
                group.unit(isa, k, place, self.symbol_of[usize::from(byte)], merged);
                byte = next;
            }
            group.unit(isa, k, word.len() - 1, self.symbol_of[usize::from(byte)], NOBODY);
            group.end(isa, k, word.len());
        }
        self.symbols.merge_group(isa, group, words.len(), ids, ends);
    }

    #[inline(always)]
    fn encode_alone<I: Isa>(&self, isa: I, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let units = word.iter().map(|&byte| self.symbol_of[usize::from(byte)]);
        self.long.encode(isa, &self.symbols, word, units, &mut scratch.long, |symbol| {
            ids.push(self.symbols.ids.get(symbol));
        });
    }
}

/// BPE over characters, as SentencePiece does it. A space in a text and U+2581 are the same.
pub struct Characters {
    symbols: Symbols,
    symbol_of: CharacterTable,
    joined: Joined,
    alone: Alone,
    /// Whether unknown characters in a row belong together.
    fuses: bool,
    /// What is written for a character without a token.
    unknown: Unknown,
    whole: WholeWords,
    long: Long,
}

/// What becomes of a character without a token.
pub enum Unknown {
    /// The ids of its bytes.
    Bytes(Box<[u32; 256]>),
    /// One id.
    Id {
        /// The id.
        id: u32,
        /// Once for several characters in a row.
        fuse: bool,
    },
}

impl Unknown {
    /// Appends the ids of a character without a token.
    fn ids(&self, utf8: &[u8], ids: &mut Vec<u32>) {
        match self {
            Unknown::Bytes(of_bytes) => ids.extend(utf8.iter().map(|&byte| of_bytes[usize::from(byte)])),
            Unknown::Id { id, .. } => ids.push(*id),
        }
    }
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
        // A token with an unknown character in it is never made. Without these, no word has known and unknown ones.
        let known = |token: &&[u8]| {
            String::from_utf8_lossy(token).chars().all(|character| symbol_of.get(u32::from(character)).is_some())
        };
        let joined = Joined::new(
            (0..symbols.len() as u32).map(|symbol| symbols.bytes(symbol)).filter(known),
            true,
            [].into_iter(),
        );
        let whole = WholeWords::new(symbols.whole(false));
        // Spaces are left to `encode_alone`.
        let alone = Alone::new(Some(&joined), |character, ids: &mut Vec<u32>| {
            match symbol_of.get(u32::from(character)) {
                Some(symbol) => ids.push(symbols.ids.get(symbol)),
                None => unknown.ids(character.encode_utf8(&mut [0; 4]).as_bytes(), ids),
            }
            character != ' ' && character != SPACE
        });
        Ok(Characters { symbols, symbol_of, joined, alone, fuses, unknown, whole, long: Long::default() })
    }

    /// The largest id of any token, or of an unknown character.
    pub fn largest_id(&self) -> u32 {
        let unknown = match &self.unknown {
            Unknown::Bytes(of_bytes) => of_bytes.iter().copied().max().unwrap_or(0),
            Unknown::Id { id, .. } => *id,
        };
        self.symbols.ids.all().iter().copied().max().unwrap_or(0).max(unknown)
    }

    /// Where a text may be cut, and what characters are words by themselves; None where unknown characters in a row
    /// must stay together.
    pub fn joined(&self) -> Option<(&Joined, &Alone)> {
        (!self.fuses).then_some((&self.joined, &self.alone))
    }

    /// Where the word that starts at `at` ends: before the next character that no token joins to the one before it.
    #[inline(always)]
    pub fn end(&self, text: &[u8], at: usize) -> usize {
        let mut end = at;
        loop {
            end = self.joined.end(text, end, text.len());
            if !self.fuses || end == text.len() {
                return end;
            }
            let last = (at..end).rev().find(|&place| text[place] & 0xc0 != 0x80).unwrap_or(at);
            if self
                .symbol_of
                .get(code_point(&text[last..]).0)
                .or(self.symbol_of.get(code_point(&text[end..]).0))
                .is_some()
            {
                return end;
            }
        }
    }
}

impl Model for Characters {
    #[inline(always)]
    fn units(&self, word: &[u8]) -> usize {
        // A word is made of known characters, or of one unknown one (or several that are fused).
        if self.symbol_of.get(code_point(word).0).is_none() || word.len() > 4 * LONGEST {
            return usize::MAX;
        }
        let mut units = 0;
        for &byte in word {
            units += usize::from(byte & 0xc0 != 0x80);
        }
        units
    }

    fn touch(&self) {
        self.symbols.pairs.touch();
    }

    #[inline(always)]
    fn whole(&self) -> &WholeWords {
        &self.whole
    }

    #[inline(always)]
    fn encode_group<I: Isa, const LANES: usize>(
        &self,
        isa: I,
        words: &[&[u8]],
        group: &mut Group<LANES>,
        _: &mut Scratch,
        ids: &mut [u32],
        ends: &mut [usize; GROUP],
    ) {
        group.begin();
        for (k, word) in words.iter().enumerate() {
            let (mut at, mut place) = (0, 0);
            let mut symbol = self.symbol_at(word, &mut at);
            while at < word.len() {
                let next = self.symbol_at(word, &mut at);
                group.unit(isa, k, place, symbol, self.symbols.pairs.get(symbol, next));
                (symbol, place) = (next, place + 1);
            }
            group.unit(isa, k, place, symbol, NOBODY);
            group.end(isa, k, place + 1);
        }
        self.symbols.merge_group(isa, group, words.len(), ids, ends);
    }

    #[inline(always)]
    fn encode_alone<I: Isa>(&self, isa: I, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if self.symbol_of.get(code_point(word).0).is_none() {
            // SentencePiece has no space: the bytes are those of U+2581.
            return self.unknown.ids(if word == b" " { "\u{2581}".as_bytes() } else { word }, ids);
        }
        // Tokens are looked up by bytes below, and there a space is a space.
        let text = String::from_utf8_lossy(word);
        let plain =
            if text.contains(SPACE) { text.replace(SPACE, " ").into_bytes() } else { text.into_owned().into_bytes() };
        let mut at = 0;
        let units = std::iter::from_fn(|| (at < plain.len()).then(|| self.symbol_at(&plain, &mut at)));
        self.long.encode(isa, &self.symbols, &plain, units, &mut scratch.long, |symbol| {
            ids.push(self.symbols.ids.get(symbol));
        });
    }
}

impl Characters {
    #[inline(always)]
    fn symbol_at(&self, word: &[u8], at: &mut usize) -> u32 {
        let (character, len) = code_point(&word[*at..]);
        *at += len;
        self.symbol_of.get(character).unwrap_or(NOBODY)
    }
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
