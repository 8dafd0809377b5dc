//! WordPiece as BERT has it: cleaning, lower case, accents, ideographs, punctuation, longest match.
//!
//! In: the tokens, and texts in words that tile them. Out: ids, equal to HF `tokenizers` 0.23 with `BertNormalizer`,
//! `BertPreTokenizer` and `WordPiece`. The plain version is `reference/wordpiece.py`.
//!
//! [`WordPiece::end`] and [`WordPiece::starts`] cut the raw text; [`WordPiece::encode`] does everything to one raw
//! word, so its result can be cached by the bytes of the word. A word is white space, then either one character that
//! stands alone (punctuation, an ideograph) or a run of all others; white space at the end of a text is a word too.
//!
//! **Encoding word by word equals encoding the whole text.** A cut lies directly before or after a character X that
//! is white space, punctuation or an ideograph. The steps in turn:
//! - Cleaning and lower-casing look at one character at a time, and the cleaner deletes no X.
//! - Ideographs get a space on both sides, which is what the cut amounts to.
//! - NFD moves characters within runs whose combining class is not 0. X, and all that it decomposes into, has class 0,
//!   so no run goes beyond X, nor beyond the cut. Deleted characters are gone by then and hold nothing apart; X is not
//!   one of them.
//! - What X becomes is white space if X was, one punctuation mark if X was. So the pretokenizer cuts on both sides of
//!   it, and no word that it finds, hence no token, spans the cut.
//!
//! What the proof says about characters is tested for every code point. The converse does not hold and is not needed:
//! U+2260 decomposes into `=` and a mark, so a raw word may hold several words, and `encode` finds them all.

mod classes;
mod scan;
#[cfg(test)]
mod tests;

use super::alone::Alone;
use super::batch::Model;
use super::isa::Isa;
use super::lockstep::{self, GROUP, Group};
use super::trie::{PAD, Starts, Trie, Word};
use super::whole::WholeWords;
use crate::error::{Error, Result};
use crate::pretoken::classes::decode;
use classes::{CASED, CJK, Classes, DECOMPOSES, DELETED, MARK, PUNCTUATION, REORDERS, WHITE};
use unicode_normalization_alignments::char::{canonical_combining_class, decompose_canonical};

/// The model's and the normalizer's options, under the names of the contract with Python.
#[derive(Clone, Debug)]
pub struct Options {
    /// The id of a word that no sequence of tokens spells, or that is too long.
    pub unk: u32,
    /// What tokens that continue a word begin with: `##`.
    pub prefix: String,
    /// Words of more characters than this (after normalization) are unknown.
    pub max_chars: usize,
    /// Delete controls, and let all white space be a space.
    pub clean: bool,
    /// Every ideograph is a word.
    pub chinese: bool,
    /// Decompose (NFD) and delete nonspacing marks.
    pub strip_accents: bool,
    /// Lower case, after the accents.
    pub lowercase: bool,
}

/// A vocabulary and its options, ready to encode. Immutable, so threads may share one; each has its own [`Scratch`].
pub struct WordPiece {
    trie: Trie,
    /// Tokens that start a word.
    start: Starts,
    /// Tokens that continue one.
    middle: Starts,
    classes: Box<Classes>,
    simple: Box<[Simple; TWO_BYTES]>,
    unk: u32,
    largest_id: u32,
    max_chars: usize,
    clean: bool,
    lowercase: bool,
    /// White space, punctuation and ideographs.
    pub(super) alone: Alone,
    /// Tokens of small letters and digits: a word that is one of them is that token, whatever the options.
    whole: WholeWords,
}

/// Buffers of [`WordPiece::encode`], so that it need not allocate.
#[derive(Default)]
pub struct Scratch {
    /// Normalized words, each followed by [`PAD`]; beyond `len` there is room.
    text: Vec<u8>,
    words: Vec<Word>,
    /// Where the word starts that is not complete yet, and where it ends so far.
    start: usize,
    len: usize,
    /// Characters that canonical ordering may still move, with their combining class.
    pending: Vec<(u8, char)>,
    /// The ids of each word, from its start on.
    ids: Vec<u32>,
}

impl WordPiece {
    /// The tokens as they are written in the vocabulary, `##` included, with their ids. Of equal tokens the last counts.
    pub fn new(tokens: &[(&[u8], u32)], options: &Options) -> Result<WordPiece> {
        // A token with the prefix could start a word as well, if the prefix had no punctuation in it.
        let prefix = options.prefix.as_bytes();
        let continuing: Vec<(&[u8], u32)> =
            tokens.iter().filter_map(|&(token, id)| Some((token.strip_prefix(prefix)?, id))).collect();
        if tokens.iter().any(|(token, _)| std::str::from_utf8(token).is_err()) {
            return Err(Error::Tokenizer("a token is not valid UTF-8; expected tokens made of characters.".to_owned()));
        }
        let (trie, start, middle) = Trie::new(tokens, &continuing)?;
        let (start, middle) = (trie.starts(start), trie.starts(middle));
        let &Options { unk, max_chars, clean, lowercase, .. } = options;
        // Positions are 32 bits.
        if max_chars > 1 << 28 {
            return Err(Error::Tokenizer(format!(
                "words of up to {max_chars} characters; expected at most {}. Use the `tokenizers` library for it.",
                1 << 28
            )));
        }
        let largest_id = tokens.iter().map(|&(_, id)| id).fold(unk, u32::max);
        let classes = classes::build(options);
        let simple = Box::new(std::array::from_fn(|code_point| Simple::of(code_point, &classes)));
        let plain = |token: &[u8]| {
            let small = token.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            small && !token.is_empty() && token.len() <= max_chars && (prefix.is_empty() || !token.starts_with(prefix))
        };
        // Of equal tokens the last counts, as in the trie.
        let mut whole: Vec<(&[u8], u32)> = tokens.iter().rev().copied().filter(|(token, _)| plain(token)).collect();
        whole.sort_by_key(|&(token, _)| token);
        whole.dedup_by_key(|&mut (token, _)| token);
        let whole = WholeWords::new(whole.into_iter());
        let alone = Alone::default();
        let mut made = WordPiece {
            trie,
            start,
            middle,
            classes,
            simple,
            unk,
            largest_id,
            max_chars,
            clean,
            lowercase,
            alone,
            whole,
        };
        let mut scratch = Scratch::default();
        made.alone = Alone::new(None, |character, ids| {
            let alone = made.classes[character as usize] & (WHITE | PUNCTUATION | CJK) != 0;
            if alone {
                made.encode(character.encode_utf8(&mut [0; 4]).as_bytes(), &mut scratch, ids);
            }
            alone
        });
        Ok(made)
    }

    /// The largest id that it can write.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// Appends the ids of one raw word (or of any text: all of the pipeline is done here), which is valid UTF-8.
    pub fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        self.normalize(word, scratch, Some(out));
        self.cut(scratch, out);
    }

    /// Adds the words of a raw word (or of any text) to the scratch. If they are many, the ids of some go to `out`.
    #[inline(always)]
    fn normalize(&self, word: &[u8], scratch: &mut Scratch, out: Option<&mut Vec<u32>>) {
        if scratch.start == scratch.len && word.len() <= GROUPED && self.push_plain(word, scratch) {
            return;
        }
        let mut sink = Sink { of: self, scratch, out };
        let mut at = 0;
        while let Some(&byte) = word.get(at) {
            if byte < 0xe0 {
                let (code_point, len) = match word.get(at + 1) {
                    Some(&next) if byte >= 0x80 => (usize::from(byte & 0x1f) << 6 | usize::from(next & 0x3f), 2),
                    _ => (usize::from(byte), 1),
                };
                at += len;
                let Simple { utf8, len } = self.simple[code_point];
                if len != Simple::NOT {
                    sink.push(&utf8, usize::from(len));
                    continue;
                }
                let class = self.classes[code_point];
                if class & DELETED == 0 {
                    sink.cleaned(char::from_u32(code_point as u32).unwrap_or_default(), class);
                }
            } else {
                let (code_point, len) = decode(word, at);
                let class = self.classes[code_point];
                if class == 0 {
                    let mut utf8 = [0; 4];
                    utf8[..len].copy_from_slice(&word[at..at + len]);
                    sink.push(&utf8, len);
                } else if class & DELETED == 0 {
                    // Valid UTF-8 has no surrogates.
                    sink.cleaned(char::from_u32(code_point as u32).unwrap_or_default(), class);
                }
                at += len;
            }
        }
        sink.end_word();
    }

    /// Adds a word of letters and digits, if it is one; it has at most [`GROUPED`] bytes.
    #[inline(always)]
    fn push_plain(&self, word: &[u8], scratch: &mut Scratch) -> bool {
        let Scratch { text, words, start, len, .. } = scratch;
        if text.len() < *len + GROUPED + 2 {
            text.resize(2 * *len + GROUPED + 64, 0);
        }
        let end = *len + word.len();
        let room = &mut text[*len..end];
        let plain = match word.len() {
            16.. => self.lower_in_parts::<16>(word, room),
            8.. => self.lower_in_parts::<8>(word, room),
            4.. => self.lower_in_parts::<4>(word, room),
            1.. => self.lower_in_parts::<1>(word, room),
            0 => false,
        };
        if plain && word.len() <= self.max_chars {
            text[end] = PAD;
            words.push(Word { start: *start as u32, end: end as u32, ids: None });
            *len = end + 1;
            *start = *len;
        }
        plain && word.len() <= self.max_chars
    }

    /// Copies a word of at least `N` bytes in lower case; false if it is not all letters and digits.
    #[inline(always)]
    fn lower_in_parts<const N: usize>(&self, word: &[u8], out: &mut [u8]) -> bool {
        let mut plain = true;
        for at in (0..word.len()).step_by(N) {
            // The last part overlaps the one before.
            let at = at.min(word.len() - N);
            let Some(part) = word[at..].first_chunk::<N>() else { return false };
            let mut lower = [0; N];
            let mut others = 0;
            for k in 0..N {
                let byte = part[k];
                let small = byte | 0x20;
                let letter = small.wrapping_sub(b'a') < 26;
                others |= u8::from(!(letter | (byte.wrapping_sub(b'0') < 10)));
                lower[k] = if letter & self.lowercase { small } else { byte };
            }
            out[at..at + N].copy_from_slice(&lower);
            plain &= others == 0;
        }
        plain
    }

    /// Appends the ids of all words in the scratch, and removes these.
    #[inline(always)]
    fn cut(&self, scratch: &mut Scratch, out: &mut Vec<u32>) {
        self.find(scratch);
        for word in &scratch.words {
            match word.ids {
                Some(ids) => out.extend_from_slice(&scratch.ids[word.start as usize..][..ids as usize]),
                None => out.push(self.unk),
            }
        }
        scratch.clear();
    }

    /// The ids of each word in the scratch.
    #[inline(always)]
    fn find(&self, scratch: &mut Scratch) {
        let Scratch { text, words, ids, .. } = scratch;
        if ids.len() < text.len() {
            ids.resize(text.len(), 0);
        }
        self.trie.cut(&self.start, &self.middle, text, words, ids);
    }
}

impl Scratch {
    #[inline(always)]
    fn clear(&mut self) {
        self.words.clear();
        (self.start, self.len) = (0, 0);
    }
}

/// Words in a scratch from which on their ids are written.
const MANY: usize = 1 << 10;

/// Code points of one or two bytes.
const TWO_BYTES: usize = 0x800;

/// What becomes of a character that neither ends a word nor waits for its neighbours: up to four bytes.
#[derive(Clone, Copy)]
struct Simple {
    utf8: [u8; 4],
    len: u8,
}

impl Simple {
    /// The length of a character that is not of this kind.
    const NOT: u8 = 0xff;

    fn of(code_point: usize, classes: &Classes) -> Simple {
        let mut parts = vec![];
        let character = char::from_u32(code_point as u32).unwrap_or_default();
        match classes[code_point] & DECOMPOSES {
            0 => parts.push(character),
            _ => decompose_canonical(character, |part| parts.push(part)),
        }
        let class = |part: &char| classes[*part as usize];
        let flags = classes[code_point] & !DECOMPOSES | parts.iter().fold(0, |all, part| all | class(part) & !MARK);
        // Marks after the first part are deleted, and have nothing before them that waits.
        parts.retain(|part| class(part) & MARK == 0);
        let made: String = parts
            .iter()
            .flat_map(|part| {
                let lower = part.to_lowercase().filter(move |_| class(part) & CASED != 0);
                lower.chain(Some(*part).filter(|part| class(part) & CASED == 0))
            })
            .collect();
        let mut utf8 = [0; 4];
        let simple = flags & !CASED == 0 && (1..=4).contains(&made.len());
        if simple {
            utf8[..made.len()].copy_from_slice(made.as_bytes());
        }
        Simple { utf8, len: if simple { made.len() as u8 } else { Simple::NOT } }
    }
}

/// Where characters go on their way to words.
struct Sink<'a> {
    of: &'a WordPiece,
    scratch: &'a mut Scratch,
    /// Where the ids of many words go, so that the scratch stays small.
    out: Option<&'a mut Vec<u32>>,
}

impl Sink<'_> {
    /// A character after cleaning.
    fn cleaned(&mut self, c: char, class: u8) {
        if class & CJK != 0 {
            self.end_word();
        }
        if class & DECOMPOSES != 0 {
            decompose_canonical(c, |part| self.normalized(part, self.of.classes[part as usize]));
        } else {
            self.normalized(c, class);
        }
        if class & CJK != 0 {
            self.end_word();
        }
    }

    /// A character that does not decompose any further.
    #[inline]
    fn normalized(&mut self, c: char, class: u8) {
        if class & MARK != 0 {
            // Some marks have class 0: they are deleted, but only after they have held others apart.
            if !self.scratch.pending.is_empty() && canonical_combining_class(c) == 0 {
                self.settle();
            }
        } else if class & REORDERS != 0 {
            // They all belong to one word; when there are too many, it is unknown, whatever their order.
            if self.scratch.pending.len() <= self.of.max_chars {
                self.scratch.pending.push((canonical_combining_class(c), c));
            }
        } else if class & WHITE != 0 {
            self.end_word();
        } else if class & PUNCTUATION != 0 {
            self.end_word();
            self.character(c, class);
            self.end_word();
        } else {
            self.character(c, class);
        }
    }

    /// The last step before the word: lower case.
    #[inline]
    fn character(&mut self, c: char, class: u8) {
        let mut utf8 = [0; 4];
        if class & CASED == 0 {
            let len = c.encode_utf8(&mut utf8).len();
            self.push(&utf8, len);
        } else {
            c.to_lowercase().for_each(|lower| {
                let len = lower.encode_utf8(&mut utf8).len();
                self.push(&utf8, len);
            });
        }
    }

    /// Adds the first `len` bytes.
    #[inline(always)]
    fn push<const N: usize>(&mut self, utf8: &[u8; N], len: usize) {
        if !self.scratch.pending.is_empty() {
            self.settle();
        }
        let Scratch { text, start, len: end, .. } = &mut *self.scratch;
        // Beyond this the word is too long, however many bytes a character has.
        if (*end - *start) / 4 <= self.of.max_chars {
            if text.len() < *end + N {
                text.resize(2 * *end + 64, 0);
            }
            text[*end..*end + N].copy_from_slice(utf8);
            *end += len;
        }
    }

    /// Puts the pending characters in canonical order.
    #[cold]
    fn settle(&mut self) {
        let mut pending = std::mem::take(&mut self.scratch.pending);
        pending.sort_by_key(|&(class, _)| class);
        for (_, c) in pending.drain(..) {
            self.character(c, self.of.classes[c as usize]);
        }
        self.scratch.pending = pending;
    }

    /// The word is complete, if there is one.
    #[inline(always)]
    fn end_word(&mut self) {
        if !self.scratch.pending.is_empty() {
            self.settle();
        }
        let Scratch { text, words, start, len, .. } = &mut *self.scratch;
        if *start == *len {
            return;
        }
        let word = &text[*start..*len];
        if word.len() > self.of.max_chars && characters(word) > self.of.max_chars {
            // No sequence of tokens spells this.
            text[*start] = PAD;
            *len = *start + 1;
        }
        if text.len() < *len + 2 {
            text.resize(2 * *len + 64, 0);
        }
        text[*len] = PAD;
        words.push(Word { start: *start as u32, end: *len as u32, ids: None });
        *len += 1;
        *start = *len;
        if words.len() == MANY
            && let Some(out) = &mut self.out
        {
            self.of.cut(self.scratch, out);
        }
    }
}

/// Raw words of up to so many bytes go in groups. Each byte is at most one character, and becomes three ids at most.
const GROUPED: usize = lockstep::GROUP_IDS / 3;

/// Characters in valid UTF-8: all bytes but those that continue one.
fn characters(word: &[u8]) -> usize {
    word.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

impl Model for WordPiece {
    const TRIMS: bool = true;

    /// White space gives no ids, nor does a control that is deleted.
    #[inline(always)]
    fn without_first(&self, first: u8) -> bool {
        if self.clean { first <= b' ' } else { first == b' ' || matches!(first, b'\t'..=b'\r') }
    }

    #[inline(always)]
    fn trims_up_to_space(&self) -> bool {
        self.clean
    }

    /// Nothing is merged; words that are not too long go in groups all the same, with their tokens fetched early.
    #[inline(always)]
    fn units(&self, word: &[u8]) -> usize {
        if word.len() <= GROUPED { 1 } else { usize::MAX }
    }

    fn touch(&self) {
        self.trie.touch();
    }

    #[inline(always)]
    fn whole(&self) -> &WholeWords {
        &self.whole
    }

    #[inline(always)]
    fn encode_group<I: Isa, const LANES: usize>(
        &self,
        _: I,
        words: &[&[u8]],
        _: &mut Group<LANES>,
        scratch: &mut super::batch::Scratch,
        ids: &mut [u32],
        ends: &mut [usize; GROUP],
    ) {
        let scratch = &mut scratch.wordpiece;
        for k in 0..words.len() {
            self.normalize(words[k], scratch, None);
            ends[k] = scratch.words.len();
        }
        self.find(scratch);
        let (mut from, mut end) = (0, 0);
        for word_end in &mut ends[..words.len()] {
            for word in &scratch.words[from..*word_end] {
                let found = &scratch.ids[word.start as usize..][..word.ids.unwrap_or(0) as usize];
                ids[end..end + found.len()].copy_from_slice(found);
                end += found.len();
                if word.ids.is_none() {
                    ids[end] = self.unk;
                    end += 1;
                }
            }
            (from, *word_end) = (*word_end, end);
        }
        scratch.clear();
    }

    #[inline(always)]
    fn encode_alone<I: Isa>(&self, _: I, word: &[u8], scratch: &mut super::batch::Scratch, ids: &mut Vec<u32>) {
        self.encode(word, &mut scratch.wordpiece, ids);
    }
}
