//! Normalization before encoding: Unicode forms, lower case, accents, plain replacements.
//!
//! In: a text and a list of steps. Out: the text after all of them, equal to the normalizers of HF `tokenizers` 0.23 in
//! a `Sequence`, whose Unicode tables these are (Unicode 9; Rust's own for lower case).
//!
//! Most texts are normal already, so each step first looks for something to do:
//! 1. Blocks of 64 bytes in which no byte is as large as the lead byte of the first character that the step could
//!    change: NFC skips everything below U+0300 like this.
//! 2. Characters in a bitmap of those that the step leaves alone wherever they stand, called *plain*.
//!
//! What is not plain is normalized together with the character before it; all else is copied. **That is exact:** a
//! character is plain for a Unicode form if the form leaves it alone as a text of its own, and the first character of
//! its decomposition has combining class 0 and is the second half of no composition. So canonical ordering moves nothing
//! across the place before it, and the composition takes nothing across it: the text may be cut there, and in a row of
//! plain characters everywhere. A plain character may well be the first half of a composition, hence the character
//! before.

use crate::error::{Error, Result};
use crate::pretoken::classes::decode;
use memchr::memmem::Finder;
use std::collections::HashSet;
use std::sync::OnceLock;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::{
    canonical_combining_class, decompose_canonical, decompose_compatible, is_combining_mark,
};

/// One step, named as in the binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// What looks at characters.
    Form(Form),
    /// A text before each text that is not empty.
    Prepend(String),
    /// Every occurrence of the first, left to right, becomes the second.
    Replace(String, String),
}

/// What becomes of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Canonical composition.
    Nfc,
    /// Canonical decomposition.
    Nfd,
    /// Compatibility composition.
    Nfkc,
    /// Compatibility decomposition.
    Nfkd,
    /// Lower case of each character by itself: a final sigma is as any other.
    Lowercase,
    /// Marks (M) go; nothing is decomposed.
    StripAccents,
}

impl Step {
    /// A step as the binding writes it: its name, then its texts.
    pub fn parse<S: AsRef<str>>(step: &[S]) -> Result<Step> {
        let words: Vec<&str> = step.iter().map(AsRef::as_ref).collect();
        Ok(match words[..] {
            ["nfc"] => Step::Form(Form::Nfc),
            ["nfd"] => Step::Form(Form::Nfd),
            ["nfkc"] => Step::Form(Form::Nfkc),
            ["nfkd"] => Step::Form(Form::Nfkd),
            ["lowercase"] => Step::Form(Form::Lowercase),
            ["strip_accents"] => Step::Form(Form::StripAccents),
            ["prepend", text] => Step::Prepend(text.to_owned()),
            ["replace", old, new] => Step::Replace(old.to_owned(), new.to_owned()),
            _ => {
                return Err(Error::Tokenizer(format!(
                    "normalizer step {words:?}: expected (\"nfc\",), (\"nfd\",), (\"nfkc\",), (\"nfkd\",), \
                     (\"lowercase\",), (\"strip_accents\",), (\"prepend\", text) or (\"replace\", old, new)"
                )));
            }
        })
    }
}

/// Steps that are ready to be applied. Immutable, so threads may share one; each has its own [`Scratch`].
pub struct Normalizer {
    steps: Vec<Ready>,
}

/// Buffers of [`Normalizer::apply`], so that it need not allocate.
#[derive(Default)]
pub struct Scratch {
    done: String,
    next: String,
}

impl Scratch {
    /// Lets go of the memory of an unusually long text.
    pub fn shrink(&mut self) {
        for text in [&mut self.done, &mut self.next] {
            text.clear();
            text.shrink_to(1 << 20);
        }
    }
}

impl Normalizer {
    /// Fails for a replacement of the empty text: `tokenizers` takes it for a regex that matches everywhere.
    pub fn new(steps: Vec<Step>) -> Result<Normalizer> {
        Ok(Normalizer { steps: steps.into_iter().map(Ready::new).collect::<Result<_>>()? })
    }

    /// `text` after all steps: itself if nothing was to do, else a text in `scratch`.
    pub fn apply<'t>(&self, text: &'t str, scratch: &'t mut Scratch) -> &'t str {
        let mut changed = false;
        for step in &self.steps {
            let now = if changed { scratch.done.as_str() } else { text };
            if let Some(from) = step.first_change(now) {
                scratch.next.clear();
                step.write(now, from, &mut scratch.next);
                std::mem::swap(&mut scratch.done, &mut scratch.next);
                changed = true;
            }
        }
        if changed { &scratch.done } else { text }
    }
}

enum Ready {
    Characters(&'static Plain),
    Prepend(String),
    Replace { old: Box<Finder<'static>>, old_len: usize, new: String },
}

impl Ready {
    fn new(step: Step) -> Result<Ready> {
        Ok(match step {
            Step::Form(form) => Ready::Characters(Plain::of(form)),
            Step::Prepend(text) => Ready::Prepend(text),
            Step::Replace(old, _) if old.is_empty() => {
                return Err(Error::Tokenizer(
                    "normalizer step (\"replace\", \"\", ...): the text to replace is empty; \
                     use the `tokenizers` library for this tokenizer"
                        .to_owned(),
                ));
            }
            Step::Replace(old, new) => {
                Ready::Replace { old: Box::new(Finder::new(old.as_bytes()).into_owned()), old_len: old.len(), new }
            }
        })
    }

    /// Where the first thing to do may be; None if there is surely nothing.
    fn first_change(&self, text: &str) -> Option<usize> {
        match self {
            Ready::Characters(plain) => plain.first_not_plain(text.as_bytes(), 0),
            Ready::Prepend(_) => (!text.is_empty()).then_some(0),
            Ready::Replace { old, .. } => old.find(text.as_bytes()),
        }
    }

    /// Appends what the step makes of `text`, in which nothing is to do before `from`.
    fn write(&self, text: &str, from: usize, out: &mut String) {
        match self {
            Ready::Characters(plain) => plain.write(text, from, out),
            Ready::Prepend(before) => {
                out.push_str(before);
                out.push_str(text);
            }
            Ready::Replace { old, old_len, new } => {
                let (mut done, mut found) = (0, Some(from));
                while let Some(at) = found {
                    out.push_str(&text[done..at]);
                    out.push_str(new);
                    done = at + old_len;
                    found = old.find(&text.as_bytes()[done..]).map(|offset| done + offset);
                }
                out.push_str(&text[done..]);
            }
        }
    }
}

/// Bytes looked at together.
const BLOCK: usize = 64;

/// Code points, surrogates included so that the index needs no arithmetic.
pub const CODE_POINTS: usize = 0x11_0000;

/// Beyond these every character is plain for every form, and none has a flag of `wordpiece` but those that are filled in
/// there: ideographs and private use. Tests ask about every code point.
pub const LISTED: [std::ops::Range<u32>; 3] = [0..0x2_0000, 0x2_f800..0x2_fa20, 0xe_0000..0xe_1000];

/// Whether NFC leaves a character alone wherever it stands. Surrogates are no characters, and are left alone.
pub fn nfc_leaves(code_point: usize) -> bool {
    Plain::of(Form::Nfc).is_plain(code_point)
}

/// Which characters a step leaves alone wherever they stand.
struct Plain {
    form: Form,
    /// A bit for each code point, set for those that are *not* plain.
    bits: Box<[u64; CODE_POINTS / 64]>,
    /// Text without bytes from here on, and without capital letters where `upper` is set, is plain.
    limit: u8,
    upper: bool,
}

impl Plain {
    /// The table of `form`, built on first use (about 10 ms) and shared by all threads.
    fn of(form: Form) -> &'static Plain {
        static TABLES: [OnceLock<Plain>; 6] = [const { OnceLock::new() }; 6];
        TABLES[form as usize].get_or_init(|| Plain::build(form))
    }

    fn build(form: Form) -> Plain {
        let bits = vec![0; CODE_POINTS / 64].into_boxed_slice();
        let mut bits: Box<[u64; CODE_POINTS / 64]> = bits.try_into().expect("made with that length");
        let second_halves = second_halves();
        let mut first = char::MAX;
        for c in LISTED.into_iter().flatten().filter_map(char::from_u32) {
            if !is_plain(form, c, &second_halves) {
                bits[c as usize / 64] |= 1 << (c as usize % 64);
                if !c.is_ascii() {
                    first = first.min(c);
                }
            }
        }
        let mut utf8 = [0; 4];
        let limit = first.encode_utf8(&mut utf8).as_bytes()[0];
        Plain { form, bits, limit, upper: form == Form::Lowercase }
    }

    #[inline(always)]
    fn is_plain(&self, code_point: usize) -> bool {
        self.bits[code_point / 64] >> (code_point % 64) & 1 == 0
    }

    /// Whether all of a block is surely plain. Compilers vectorize these loops; none of them ends early.
    #[inline(always)]
    fn skips(&self, block: &[u8; BLOCK]) -> bool {
        let mut found = block.iter().fold(0, |largest: u8, &byte| largest.max(byte)) >= self.limit;
        if self.upper {
            found |= block.iter().fold(false, |any, byte| any | byte.is_ascii_uppercase());
        }
        !found
    }

    /// The first character from `at` on (a character's start) that is not plain.
    fn first_not_plain(&self, text: &[u8], mut at: usize) -> Option<usize> {
        while at < text.len() {
            // The block may end inside a character. If it is skipped, that one is plain as well: its lead byte is small.
            if let Some(block) = text[at..].first_chunk::<BLOCK>()
                && self.skips(block)
            {
                at += BLOCK;
                while text.get(at).is_some_and(|byte| byte & 0xc0 == 0x80) {
                    at += 1;
                }
                continue;
            }
            let stop = (at + BLOCK).min(text.len());
            while at < stop {
                let (code_point, len) = decode(text, at);
                if !self.is_plain(code_point) {
                    return Some(at);
                }
                at += len;
            }
        }
        None
    }

    /// Appends the normalized text, in which all is plain before `from`.
    fn write(&self, text: &str, mut from: usize, out: &mut String) {
        out.push_str(&text[..from]);
        if self.form == Form::Lowercase {
            return self.lowercase(&text[from..], out);
        }
        let bytes = text.as_bytes();
        while from < bytes.len() {
            // What is not plain, up to the next character that is.
            let mut to = from;
            while to < bytes.len() {
                let (code_point, len) = decode(bytes, to);
                if self.is_plain(code_point) {
                    break;
                }
                to += len;
            }
            self.normalize(text, from, to, out);
            from = self.first_not_plain(bytes, to).unwrap_or(bytes.len());
            out.push_str(&text[to..from]);
        }
    }

    /// Capitals are too frequent for stretches of what is plain: those of ASCII are changed many at a time.
    fn lowercase(&self, mut text: &str, out: &mut String) {
        while !text.is_empty() {
            let (ascii, beyond) = text.split_at(ascii_prefix(text));
            let before = out.len();
            out.push_str(ascii);
            out[before..].make_ascii_lowercase();
            let end = beyond.bytes().position(|byte| byte.is_ascii()).unwrap_or(beyond.len());
            for c in beyond[..end].chars() {
                if self.is_plain(c as usize) {
                    out.push(c);
                } else {
                    out.extend(c.to_lowercase());
                }
            }
            text = &beyond[end..];
        }
    }

    /// Appends what becomes of `text[from..to]`. Forms that compose take back the character before, which stands at
    /// the end of `out` already: it was plain, so it was copied.
    fn normalize(&self, text: &str, from: usize, to: usize, out: &mut String) {
        let mut run = &text[from..to];
        match self.form {
            Form::Nfd => out.extend(run.nfd().map(|(c, _)| c)),
            Form::Nfkd => out.extend(run.nfkd().map(|(c, _)| c)),
            Form::StripAccents => {}
            Form::Lowercase => self.lowercase(run, out),
            Form::Nfc | Form::Nfkc => {
                if let Some(before) = text[..from].chars().next_back() {
                    out.truncate(out.len() - before.len_utf8());
                    run = &text[from - before.len_utf8()..to];
                }
                if self.form == Form::Nfc {
                    out.extend(run.nfc().map(|(c, _)| c));
                } else {
                    out.extend(run.nfkc().map(|(c, _)| c));
                }
            }
        }
    }
}

/// Where the first character beyond ASCII is, or the end.
fn ascii_prefix(text: &str) -> usize {
    let blocks = text.as_bytes().chunks_exact(BLOCK);
    let whole = blocks.take_while(|block| block.is_ascii()).count() * BLOCK;
    whole + text.as_bytes()[whole..].iter().take_while(|byte| byte.is_ascii()).count()
}

fn is_plain(form: Form, c: char, second_halves: &HashSet<char>) -> bool {
    let mut first = None;
    match form {
        Form::Lowercase => return c.to_lowercase().eq([c]),
        Form::StripAccents => return !is_combining_mark(c),
        Form::Nfc | Form::Nfd => decompose_canonical(c, |part| first = first.or(Some(part))),
        Form::Nfkc | Form::Nfkd => decompose_compatible(c, |part| first = first.or(Some(part))),
    }
    let first = first.unwrap_or(c);
    let alone = std::iter::once(c);
    canonical_combining_class(first) == 0
        && match form {
            Form::Nfc => !second_halves.contains(&first) && alone.nfc().map(|(c, _)| c).eq([c]),
            Form::Nfkc => !second_halves.contains(&first) && alone.nfkc().map(|(c, _)| c).eq([c]),
            Form::Nfd => alone.nfd().map(|(c, _)| c).eq([c]),
            _ => alone.nfkd().map(|(c, _)| c).eq([c]),
        }
}

/// Every character that can be the second half of a composition, and a few others.
///
/// Composition sees decomposed characters only, and what a pair composes into decomposes into the pair again. So a
/// second half is the last character of some decomposition. (Hangul: vowels and final consonants.)
fn second_halves() -> HashSet<char> {
    let mut halves = HashSet::new();
    for c in LISTED.into_iter().flatten().filter_map(char::from_u32) {
        let (mut last, mut parts) = (c, 0);
        decompose_canonical(c, |part| (last, parts) = (part, parts + 1));
        if parts > 1 {
            halves.insert(last);
        }
    }
    halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::plainly;
    use crate::random::Random;

    const FORMS: [Form; 6] = [Form::Nfc, Form::Nfd, Form::Nfkc, Form::Nfkd, Form::Lowercase, Form::StripAccents];

    fn apply(form: Form, text: &str) -> String {
        let normalizer = Normalizer { steps: vec![Ready::Characters(Plain::of(form))] };
        normalizer.apply(text, &mut Scratch::default()).to_owned()
    }

    #[test]
    fn the_listed_blocks_hold_everything_that_is_not_plain() {
        let halves = second_halves();
        for form in FORMS {
            let table = Plain::of(form);
            for c in '\0'..=char::MAX {
                assert_eq!(table.is_plain(c as usize), is_plain(form, c, &halves), "{form:?} {c:?}");
            }
            assert_eq!(table.limit, [0xcc, 0xc3, 0xc2, 0xc2, 0xc3, 0xcc][form as usize]);
        }
        for c in '\0'..=char::MAX {
            let mut last = c;
            decompose_canonical(c, |part| last = part);
            assert!(
                last == c
                    || c as u32 >= 0xac00 && (c as u32) < 0xd7a4
                    || LISTED.iter().any(|l| l.contains(&(c as u32)))
            );
        }
    }

    #[test]
    fn stretches_put_together_are_the_whole_text_normalized() {
        // Everything that is not plain somewhere, and some that is.
        let odd: Vec<char> =
            ('\0'..='\u{1ffff}').filter(|&c| !Plain::of(Form::Nfkc).is_plain(c as usize) || c < '\u{400}').collect();
        let marks: Vec<char> = odd.iter().copied().filter(|&c| canonical_combining_class(c) > 0).collect();
        let few: Vec<char> =
            "aeo\u{300}\u{301}\u{323}\u{338}\u{345}=\u{1100}\u{1161}\u{11a8}\u{ac00}\u{9c7}\u{9be}".chars().collect();
        let mut random = Random(1);
        for _ in 0..4000 {
            let mut text = String::new();
            for _ in 0..random.below(60) {
                match random.below(6) {
                    0 => text.push(random.pick(&odd)),
                    1 | 2 => text.push(random.pick(&marks)),
                    3 => text.extend(std::iter::repeat_n('x', random.below(70))),
                    _ => text.push(random.pick(&few)),
                }
            }
            for form in FORMS {
                assert_eq!(apply(form, &text), plainly(form, &text), "{form:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_text_that_is_normal_is_not_copied() {
        let text = "plain text \u{e9} \u{4e2d}\u{6587} \u{430}".repeat(20);
        let normalizer = Normalizer::new(vec![
            Step::Form(Form::Nfc),
            Step::Form(Form::Lowercase),
            Step::Replace("~".into(), "-".into()),
        ]);
        let mut scratch = Scratch::default();
        assert!(std::ptr::eq(normalizer.expect("good steps").apply(&text, &mut scratch), text.as_str()));
        assert_eq!(scratch.done.capacity(), 0);
    }

    #[test]
    fn steps_follow_one_another() {
        let steps = [&["prepend", "\u{2581}"][..], &["replace", " ", "\u{2581}"], &["nfkc"], &["lowercase"]];
        let steps = steps.iter().map(|step| Step::parse(step)).collect::<Result<Vec<_>>>().expect("known steps");
        let normalizer = Normalizer::new(steps).expect("good steps");
        let mut scratch = Scratch::default();
        assert_eq!(normalizer.apply("\u{fb01} A  b", &mut scratch), "\u{2581}fi\u{2581}a\u{2581}\u{2581}b");
        assert_eq!(normalizer.apply("", &mut scratch), "");
        assert!(Step::parse(&["nfx"]).is_err());
        assert!(Normalizer::new(vec![Step::Replace(String::new(), "x".into())]).is_err());
    }
}
