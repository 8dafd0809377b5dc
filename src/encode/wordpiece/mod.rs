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
use super::lockstep::{GROUP, Group, GroupIds, LONGEST};
use super::normalize::decode;
use super::trie::{Root, Trie};
use super::whole::WholeWords;
use crate::error::Result;
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
    start: Root,
    /// Tokens that continue one.
    middle: Root,
    classes: Box<Classes>,
    unk: u32,
    largest_id: u32,
    max_chars: usize,
    clean: bool,
    /// White space, punctuation and ideographs.
    pub(super) alone: Alone,
    /// Tokens of small letters and digits: a word that is one of them is that token, whatever the options.
    whole: WholeWords,
}

/// Buffers of [`WordPiece::encode`], so that it need not allocate. They hold at most four bytes for each of
/// `max_chars` characters, whatever the text.
#[derive(Default)]
pub struct Scratch {
    /// The normalized word so far.
    word: Vec<u8>,
    /// Characters that canonical ordering may still move, with their combining class.
    pending: Vec<(u8, char)>,
}

impl WordPiece {
    /// The tokens as they are written in the vocabulary, `##` included, with their ids. Of equal tokens the last counts.
    pub fn new(tokens: &[(&[u8], u32)], options: &Options) -> Result<WordPiece> {
        // A token with the prefix could start a word as well, if the prefix had no punctuation in it.
        let prefix = options.prefix.as_bytes();
        let continuing: Vec<(&[u8], u32)> =
            tokens.iter().filter_map(|&(token, id)| Some((token.strip_prefix(prefix)?, id))).collect();
        let (trie, start, middle) = Trie::new(tokens, &continuing)?;
        let &Options { unk, max_chars, clean, .. } = options;
        let largest_id = tokens.iter().map(|&(_, id)| id).fold(unk, u32::max);
        let classes = classes::build(options);
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
        let mut made = WordPiece { trie, start, middle, classes, unk, largest_id, max_chars, clean, alone, whole };
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
    #[inline]
    pub fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let mut sink = Sink { of: self, scratch, out };
        sink.scratch.word.clear();
        let mut at = 0;
        while let Some(&byte) = word.get(at) {
            if byte < 0x80 {
                let class = self.classes[usize::from(byte)];
                at += 1;
                if class == 0 {
                    sink.push(&[byte]);
                } else if class == CASED {
                    sink.push(&[byte | 0x20]);
                } else if class & DELETED == 0 {
                    sink.normalized(char::from(byte), class);
                }
            } else {
                let (code_point, len) = decode(word, at);
                let class = self.classes[code_point];
                if class == 0 {
                    sink.push(&word[at..at + len]);
                } else if class & DELETED == 0 {
                    // Valid UTF-8 has no surrogates.
                    sink.cleaned(char::from_u32(code_point as u32).unwrap_or_default(), class);
                }
                at += len;
            }
        }
        sink.end_word();
    }
}

/// Where characters go on their way to ids.
struct Sink<'a> {
    of: &'a WordPiece,
    scratch: &'a mut Scratch,
    out: &'a mut Vec<u32>,
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
            self.push(c.encode_utf8(&mut utf8).as_bytes());
        } else {
            c.to_lowercase().for_each(|lower| self.push(lower.encode_utf8(&mut utf8).as_bytes()));
        }
    }

    #[inline(always)]
    fn push(&mut self, utf8: &[u8]) {
        if !self.scratch.pending.is_empty() {
            self.settle();
        }
        // Beyond this the word is too long, however many bytes a character has.
        if self.scratch.word.len() / 4 <= self.of.max_chars {
            self.scratch.word.extend_from_slice(utf8);
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

    /// The ids of the word so far, if there is one.
    #[inline]
    fn end_word(&mut self) {
        if !self.scratch.pending.is_empty() {
            self.settle();
        }
        let Sink { of, scratch, out } = self;
        let word = scratch.word.as_slice();
        let before = out.len();
        let mut root = of.start;
        let mut at = 0;
        if word.len() > of.max_chars && characters(word) > of.max_chars {
            out.push(of.unk);
            at = word.len();
        }
        while at < word.len() {
            let Some((id, len)) = of.trie.longest(root, &word[at..]) else {
                out.truncate(before);
                out.push(of.unk);
                break;
            };
            out.push(id);
            at += len;
            root = of.middle;
        }
        scratch.word.clear();
    }
}

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

    /// Nothing is merged; words that are not too long go in groups all the same, with their tokens fetched early.
    #[inline(always)]
    fn units(&self, word: &[u8]) -> usize {
        if word.len() <= LONGEST { 1 } else { usize::MAX }
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
        ids: &mut GroupIds,
        ends: &mut [usize; GROUP],
    ) {
        let super::batch::Scratch { wordpiece, ids: made, .. } = scratch;
        made.clear();
        for k in 0..words.len() {
            self.encode(words[k], wordpiece, made);
            ends[k] = made.len();
        }
        // A word of at most 61 bytes has at most as many characters, of which each may become three.
        ids[..made.len()].copy_from_slice(made);
    }

    #[inline(always)]
    fn encode_alone<I: Isa>(&self, _: I, word: &[u8], scratch: &mut super::batch::Scratch, ids: &mut Vec<u32>) {
        self.encode(word, &mut scratch.wordpiece, ids);
    }
}
