//! The named splits by hand: what their regexes do, without a regex.
//!
//! In: a document and a [`Scanner`]. Out: the same pretokens as the regex of that name, for every valid UTF-8 text.
//! A scanner says where the pretoken that starts at a given byte ends; it never needs to know what came before,
//! which is why the loop may hand 64 bytes at a time to `block` and fall back to one pretoken at a time here.
//! Time is linear: a run is read at most three times, however long. The oracle is `reference`.

use super::block::{BLOCK, Block};
use super::classes::{
    ANY, BLANK, CASELESS, Classes, IDEOGRAPHIC, Kinds, LETTER, LOWER, MARK, NEWLINE, NUMBER, PUNCTUATION, REST, SYMBOL,
    UPPER, WHITE, classes, decode,
};
#[cfg(target_arch = "x86_64")]
use super::wide::Avx2;
use super::wide::{Blocks, Characters, Portable};

/// One split: where pretokens end, one at a time or many at once.
pub trait Scanner {
    /// Whether `starts` is worth asking.
    const IN_BLOCKS: bool = true;

    /// The end of the pretoken that starts at `at`, which is inside the text.
    fn end(text: &Text, at: usize) -> usize;

    /// Bit p is set where a pretoken certainly starts with character p of the block, which is at `at`; a pretoken starts
    /// with the first one too, but bit 0 is clear. No bit at all means: ask `end`.
    fn starts(text: &Text, at: usize, block: &Block) -> u64;
}

/// Calls `each` with every pretoken of `text` in order.
#[inline]
pub fn for_each<'t, S: Scanner>(text: &'t str, each: impl FnMut(&'t [u8])) {
    #[cfg(target_arch = "x86_64")]
    if let Some(blocks) = Avx2::detect() {
        // SAFETY: the instructions were found.
        return unsafe { for_each_wide::<S>(blocks, text, each) };
    }
    scan::<S, _>(Portable, text, each);
}

/// # Safety
/// The processor has the features named here.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn for_each_wide<'t, S: Scanner>(blocks: Avx2, text: &'t str, each: impl FnMut(&'t [u8])) {
    scan::<S, _>(blocks, text, each);
}

/// The same with one way to read blocks.
#[inline(always)]
pub(super) fn scan<'t, S: Scanner, B: Blocks>(blocks: B, text: &'t str, mut each: impl FnMut(&'t [u8])) {
    let bytes = text.as_bytes();
    let text = Text::new(bytes);
    let mut at = 0;
    let (mut one_by_one_until, mut patience) = (0, BLOCK);
    let mut characters = Characters::default();
    while at < bytes.len() {
        if S::IN_BLOCKS && at >= one_by_one_until {
            if let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
                let block = blocks.block(block, text.classes, &mut characters);
                let mut starts = blocks.spread(S::starts(&text, at, &block), block.chars);
                if starts != 0 {
                    let base = at;
                    patience = BLOCK;
                    while starts != 0 {
                        let start = base + starts.trailing_zeros() as usize;
                        each(&bytes[at..start]);
                        at = start;
                        starts &= starts - 1;
                    }
                    continue;
                }
            }
            // Where one block gave nothing (a script beyond ASCII, mostly), the next would not either: wait, and longer
            // each time. Without any wait gpt2 on multilingual text ran at 275 MB/s instead of 780.
            if !B::WIDE {
                one_by_one_until = at + patience;
                patience = (2 * patience).min(16 * BLOCK);
            }
        }
        let end = S::end(&text, at);
        each(&bytes[at..end]);
        at = end;
    }
}

/// A document and the class of its characters. Positions are byte offsets at the start of a character.
pub struct Text<'t> {
    pub(crate) bytes: &'t [u8],
    pub(crate) classes: &'static Classes,
}

impl<'t> Text<'t> {
    /// `bytes` must be valid UTF-8; where they are not, scanning is memory-safe but its ends mean nothing.
    #[inline]
    pub fn new(bytes: &'t [u8]) -> Text<'t> {
        Text { bytes, classes: classes() }
    }

    /// The class of the character at `at` (one bit) and its length in bytes; no class and no length at the end.
    #[inline(always)]
    fn class(&self, at: usize) -> (Kinds, usize) {
        let Some(&first) = self.bytes.get(at) else { return (0, 0) };
        if first < 0x80 {
            return (1 << self.classes[first as usize], 1);
        }
        // The text is valid UTF-8, so the bytes that `first` announces are there.
        let (code_point, len) = decode(self.bytes, at);
        (1 << self.classes[code_point], len)
    }

    #[inline(always)]
    fn is(&self, at: usize, byte: u8) -> bool {
        self.bytes.get(at) == Some(&byte)
    }

    /// The end of the run of characters of `kinds` that starts at `at`.
    #[inline(always)]
    fn run(&self, mut at: usize, kinds: Kinds) -> usize {
        loop {
            let (class, len) = self.class(at);
            if class & kinds == 0 {
                return at;
            }
            at += len;
        }
    }

    /// `\p{N}{1,most}`
    #[inline(always)]
    fn numbers(&self, mut at: usize, most: usize) -> usize {
        for _ in 0..most {
            let (class, len) = self.class(at);
            if class != NUMBER {
                break;
            }
            at += len;
        }
        at
    }

    /// The length of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at `at`, or 0. With `any_case`, letters of either
    /// case count, and so does U+017F, the long s, whose upper case is S. (No other letter beyond ASCII folds to
    /// one of these; the Kelvin sign folds to k.)
    #[inline(always)]
    pub fn contraction(&self, at: usize, any_case: bool) -> usize {
        if !self.is(at, b'\'') {
            return 0;
        }
        let fold = if any_case { 0x20 } else { 0 };
        let letter = |n: usize| self.bytes.get(at + n).map_or(0, |&byte| byte | fold);
        match letter(1) {
            b's' | b't' | b'm' | b'd' => 2,
            b'r' | b'v' if letter(2) == b'e' => 3,
            b'l' if letter(2) == b'l' => 3,
            _ if any_case && self.is(at + 1, 0xc5) && self.is(at + 2, 0xbf) => 3,
            _ => 0,
        }
    }

    /// The same at character `p` of a block that is at `at`, in characters.
    #[inline(always)]
    fn contraction_in(&self, block: &Block, at: usize, p: usize, any_case: bool) -> usize {
        let at = at + block.byte(p);
        let len = self.contraction(at, any_case);
        // The long s has two bytes.
        if len > 0 && self.bytes[at + 1] >= 0x80 { 2 } else { len }
    }

    /// `\s+(?!\S)|\s+` at white space: all of the run if the text ends with it, else all but its last character,
    /// which is left to the next pretoken; but a single one stands alone. The text ends before what is not of `part`:
    /// there an earlier split of a sequence has cut.
    ///
    /// With `lines`, `\s*[\r\n]+` comes first: if the run has a newline, up to and with the last one.
    #[inline(always)]
    fn white(&self, at: usize, lines: bool, part: Kinds) -> usize {
        let (mut end, mut last, mut line_end) = (at, at, at);
        loop {
            let (class, len) = self.class(end);
            if class & WHITE == 0 {
                return if lines && line_end > at {
                    line_end
                } else if class & part == 0 || last == at {
                    end
                } else {
                    last
                };
            }
            last = end;
            end += len;
            if class == NEWLINE {
                line_end = end;
            }
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, and with `DIGITS_APART` each number
/// cut out first, so that for the rest of the text it stands at an end.
pub struct Gpt2Like<const DIGITS_APART: bool>;

pub type Gpt2 = Gpt2Like<false>;
pub type DigitsThenGpt2 = Gpt2Like<true>;

impl<const DIGITS_APART: bool> Scanner for Gpt2Like<DIGITS_APART> {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let contraction = text.contraction(at, false);
        if contraction > 0 {
            return at + contraction;
        }
        let body = at + usize::from(text.is(at, b' '));
        let (class, len) = text.class(body);
        for kinds in [LETTER, SYMBOL] {
            if class & kinds != 0 {
                return text.run(body + len, kinds);
            }
        }
        if class == NUMBER && !DIGITS_APART {
            return text.run(body + len, NUMBER);
        }
        if class == NUMBER && body == at {
            return at + len;
        }
        text.white(at, false, if DIGITS_APART { ANY & !NUMBER } else { ANY })
    }

    #[inline(always)]
    fn starts(text: &Text, at: usize, block: &Block) -> u64 {
        block.gpt2_starts::<DIGITS_APART>(|p| text.contraction_in(block, at, p, false))
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
/// with `DIGITS` for the 3. With `MARKS`, marks are letters: `[\p{L}\p{M}]+`, `[^\s\p{L}\p{M}\p{N}]+`. (They may then
/// stand before a word too, as they are in `[^\r\n\p{L}\p{N}]`, but are part of it anyway.)
pub struct Cl100kLike<const DIGITS: usize, const MARKS: bool>;

pub type Cl100k = Cl100kLike<3, false>;
pub type Qwen2 = Cl100kLike<1, false>;
pub type Qwen35 = Cl100kLike<1, true>;

impl<const DIGITS: usize, const MARKS: bool> Cl100kLike<DIGITS, MARKS> {
    const WORD: Kinds = if MARKS { LETTER | MARK } else { LETTER };
    const SYMBOL: Kinds = if MARKS { SYMBOL & !MARK } else { SYMBOL };
}

impl<const DIGITS: usize, const MARKS: bool> Scanner for Cl100kLike<DIGITS, MARKS> {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let contraction = text.contraction(at, true);
        if contraction > 0 {
            return at + contraction;
        }
        let (class, len) = text.class(at);
        if class & Self::WORD != 0 {
            return text.run(at + len, Self::WORD);
        }
        if class == NUMBER {
            return text.numbers(at, DIGITS);
        }
        let body = at + len;
        let (next, next_len) = text.class(body);
        if class != NEWLINE && next & Self::WORD != 0 {
            return text.run(body + next_len, Self::WORD);
        }
        if class & Self::SYMBOL != 0 || text.is(at, b' ') && next & Self::SYMBOL != 0 {
            return text.run(text.run(body, Self::SYMBOL), NEWLINE);
        }
        text.white(at, true, ANY)
    }

    #[inline(always)]
    fn starts(text: &Text, at: usize, block: &Block) -> u64 {
        let block = if MARKS { &block.marks_as_letters() } else { block };
        block.cl100k_starts::<DIGITS>(|p| text.contraction_in(block, at, p, true))
    }
}

/// A word of o200k's first two alternatives, with neither the character before it nor the contraction after it:
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` or the same with `+` and `*` exchanged.
enum Word {
    /// The first alternative matches up to here.
    First(usize),
    /// Only the second one does: upper case letters and nothing else.
    Second(usize),
    /// Neither does.
    None,
}

/// Caseless letters and marks belong to both halves of a word. The first half takes all it can, and gives back
/// if the second half would be empty: then the word ends after the last caseless one, and capitals beyond it are
/// left for the next pretoken.
#[inline(always)]
fn word(text: &Text, at: usize) -> Word {
    let (mut end, mut last_caseless) = (at, at);
    loop {
        let (class, len) = text.class(end);
        if class & (CASELESS | MARK) != 0 {
            end += len;
            last_caseless = end;
        } else if class == UPPER {
            end += len;
        } else if class == LOWER {
            return Word::First(text.run(end + len, LOWER | CASELESS | MARK));
        } else if last_caseless > at {
            return Word::First(last_caseless);
        } else if end > at {
            return Word::Second(end);
        } else {
            return Word::None;
        }
    }
}

/// `P?U*L+C?|P?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+` with `DIGITS` for the 3, where P
/// is `[^\r\n\p{L}\p{N}]`, U capitals, L small letters, both with caseless letters and marks, and C a contraction,
/// or nothing without `CONTRACTIONS`.
pub struct O200kLike<const DIGITS: usize, const CONTRACTIONS: bool>;

pub type O200k = O200kLike<3, true>;
pub type Tekken = O200kLike<1, false>;

impl<const DIGITS: usize, const CONTRACTIONS: bool> Scanner for O200kLike<DIGITS, CONTRACTIONS> {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let (class, len) = text.class(at);
        if class == NUMBER {
            return text.numbers(at, DIGITS);
        }
        let body = at + len;
        if class != NEWLINE {
            let word_start = if class & LETTER != 0 { at } else { body };
            let word_end = match word(text, word_start) {
                Word::First(end) => end,
                // A mark is both: the P of a word, and a word itself. The first alternative is tried either way
                // before the second one is, so a mark before capitals alone, or before nothing, is a word itself.
                Word::Second(_) | Word::None if class & MARK != 0 => body,
                Word::Second(end) => end,
                Word::None => at,
            };
            if word_end > at {
                return word_end + if CONTRACTIONS { text.contraction(word_end, true) } else { 0 };
            }
        }
        if class & SYMBOL != 0 || text.is(at, b' ') && text.class(body).0 & SYMBOL != 0 {
            let mut end = text.run(body, SYMBOL);
            while text.class(end).0 == NEWLINE || text.is(end, b'/') {
                end += 1;
            }
            return end;
        }
        debug_assert!(class & WHITE != 0);
        text.white(at, true, ANY)
    }

    #[inline(always)]
    fn starts(text: &Text, at: usize, block: &Block) -> u64 {
        if CONTRACTIONS {
            block.o200k_starts::<DIGITS>(|p| text.contraction_in(block, at, p, true))
        } else {
            block.o200k_starts::<DIGITS>(|_| 0)
        }
    }
}

/// Three splits, one after another: `\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, and
/// ``[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``.
///
/// The first two leave parts in which every character is a number, ideographic (as we call the second class), or
/// neither. To the third split a part is a whole text, so it is enough that no rule reads on into a character of
/// another part. Alone of all splits this one matches nothing at some characters: those of `REST`.
pub struct DeepSeekV3;

impl Scanner for DeepSeekV3 {
    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let (class, len) = text.class(at);
        if class == NUMBER {
            text.numbers(at, 3)
        } else if class & IDEOGRAPHIC != 0 {
            deepseek_v3_part(text, at, (class, len), IDEOGRAPHIC)
        } else {
            deepseek_v3_part(text, at, (class, len), ANY & !NUMBER & !IDEOGRAPHIC)
        }
    }

    #[inline(always)]
    fn starts(_: &Text, _: usize, block: &Block) -> u64 {
        block.deepseek_v3_starts()
    }
}

/// The third split at `at`, in a part of the text whose characters are all of `part`.
#[inline(always)]
fn deepseek_v3_part(text: &Text, at: usize, (class, len): (Kinds, usize), part: Kinds) -> usize {
    let word = (LETTER | MARK) & part;
    let (punctuation, rest) = (PUNCTUATION & part, REST & part);
    let body = at + len;
    if class & word != 0 {
        return text.run(body, word);
    }
    let (next, next_len) = text.class(body);
    if class & punctuation != 0 && text.bytes[at] < 0x80 && text.bytes.get(body).is_some_and(u8::is_ascii_alphabetic) {
        let letters = text.bytes[body..].iter().position(|byte| !byte.is_ascii_alphabetic());
        return letters.map_or(text.bytes.len(), |letters| body + letters);
    }
    if class & (BLANK | rest) != 0 && next & word != 0 {
        return text.run(body + next_len, word);
    }
    if class & punctuation != 0 || text.is(at, b' ') && next & punctuation != 0 {
        return text.run(text.run(body, punctuation), NEWLINE & part);
    }
    if class & WHITE != 0 {
        return text.white(at, true, part);
    }
    // No rule begins here: the pretoken goes on to where one does, which is at the last of the run if a word follows.
    let (mut end, mut last) = (body, at);
    loop {
        let (class, len) = text.class(end);
        if class & rest == 0 {
            return if class & word != 0 { last } else { end };
        }
        last = end;
        end += len;
    }
}

/// The words of `S`, joined: what the second stage of superword training merges in. Apart stay numbers, words with a
/// newline in them, and white space at the end of the text or before more of it, so indentation and line ends; before
/// `ENDS` as well, where an earlier split of a sequence has cut.
pub struct Joined<S, const ENDS: Kinds>(std::marker::PhantomData<S>);

impl<S, const ENDS: Kinds> Joined<S, ENDS> {
    /// Whether the word of `S` from `at` to `end` stays apart.
    #[inline(always)]
    fn apart(text: &Text, at: usize, end: usize) -> bool {
        let (class, len) = text.class(at);
        if class & LETTER != 0 {
            return false;
        }
        if class == NUMBER || text.is(at, b' ') && text.class(at + len).0 == NUMBER && end > at + len {
            return true;
        }
        if text.bytes[at..end].iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            return true;
        }
        let next = text.class(end).0;
        class & WHITE != 0 && (next == 0 || next & (WHITE | ENDS) != 0) && text.run(at, WHITE) >= end
    }
}

impl<S: Scanner, const ENDS: Kinds> Scanner for Joined<S, ENDS> {
    const IN_BLOCKS: bool = false;

    #[inline(always)]
    fn end(text: &Text, at: usize) -> usize {
        let mut end = S::end(text, at);
        if Self::apart(text, at, end) {
            return end;
        }
        while end < text.bytes.len() {
            let next = S::end(text, end);
            if Self::apart(text, end, next) {
                break;
            }
            end = next;
        }
        end
    }

    #[inline(always)]
    fn starts(_: &Text, _: usize, _: &Block) -> u64 {
        0
    }
}
