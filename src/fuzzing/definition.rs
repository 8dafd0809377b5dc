//! Encoding as it is defined, step by step over whole texts: no caches, no cuts that the split does not make.
//!
//! It is `reference/encode.py` with what stands around it: added tokens, normalizing and the prefix.

use crate::encode::{
    AddedToken, Bytes, Characters, Encoder, Form, Instructions, Normalizer, Prefix, Settings, Step, Unknown,
};
use crate::error::Result;
use crate::pretoken::Split;
use fancy_regex::Regex;
use std::collections::HashMap;
use std::sync::OnceLock;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;

/// What merging starts from, and what there is besides merging.
pub enum Kind {
    /// Byte-level BPE.
    Bytes { split: Split, whole_words: bool },
    /// SentencePiece BPE. Characters without a token are the ids of their bytes, or else an id.
    Characters { of_bytes: Option<Vec<u32>>, unknown: u32, fuse: bool },
}

/// A vocabulary and its options.
pub struct Definition {
    pub kind: Kind,
    pub tokens: Vec<Vec<u8>>,
    pub ids: Vec<u32>,
    pub merges: Option<Vec<[u32; 2]>>,
    pub steps: Vec<Step>,
    pub added: Vec<AddedToken>,
    pub prefix: Prefix,
}

impl Definition {
    /// The ids of a text. `wanted` says which special tokens are looked for.
    pub fn encode(&self, text: &str, wanted: &dyn Fn(&AddedToken) -> bool) -> Vec<u32> {
        let merging = Merging::new(self);
        let active = |normalized: bool| -> Vec<(String, &AddedToken)> {
            let active = self.added.iter().filter(|token| token.normalized == normalized);
            let active = active.filter(|token| !token.special || wanted(token));
            // What is looked for in a normalized text is normalized itself.
            let spelled =
                |token: &AddedToken| if normalized { self.normalize(&token.text) } else { token.text.clone() };
            active.map(|token| (spelled(token), token)).collect()
        };
        let (raw, normalized) = (active(false), active(true));
        let mut ids = vec![];
        for (part, first) in parts(text, &raw) {
            let text = match part {
                Part::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Part::Text(text) => self.normalize(text),
            };
            for (part, first_inside) in parts(&text, &normalized) {
                match part {
                    Part::Token(id) => ids.push(id),
                    Part::Text(text) => self.stretch(&merging, text, first && first_inside, &mut ids),
                }
            }
        }
        ids
    }

    /// The encoder that must equal it.
    pub fn encoder(&self, cache_bytes: usize, instructions: Instructions) -> Result<Encoder> {
        let Definition { kind, tokens, ids, merges, steps, added, prefix } = self;
        let settings = Settings {
            normalizer: if steps.is_empty() { None } else { Some(Normalizer::new(steps.clone())?) },
            added: added.clone(),
            prefix: *prefix,
            cache_bytes,
            instructions,
        };
        let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
        match kind {
            Kind::Bytes { split, whole_words } => {
                Encoder::bytes(Bytes::new(&tokens, ids, merges.as_deref(), *whole_words)?, split.clone(), settings)
            }
            Kind::Characters { of_bytes, unknown, fuse } => {
                let unknown = match of_bytes.as_deref().map(<[u32; 256]>::try_from) {
                    Some(Ok(of_bytes)) => Unknown::Bytes(Box::new(of_bytes)),
                    _ => Unknown::Id { id: *unknown, fuse: *fuse },
                };
                Encoder::characters(Characters::new(&tokens, ids, merges.as_deref(), unknown)?, settings)
            }
        }
    }

    /// The ids of a document that is not UTF-8; None if it is refused: only byte-level BPE without a split takes one, and
    /// only where nothing is looked for in it.
    pub fn encode_raw(&self, document: &[u8], wanted: &dyn Fn(&AddedToken) -> bool) -> Option<Vec<u32>> {
        let Kind::Bytes { split, whole_words } = &self.kind else { return None };
        if !split.is_none() || !self.steps.is_empty() || self.added.iter().any(|token| !token.special || wanted(token))
        {
            return None;
        }
        let spaced = document.starts_with(b" ");
        let prefix = match self.prefix {
            Prefix::Never => false,
            Prefix::First | Prefix::Always => true,
            Prefix::FirstUnlessSpace | Prefix::AlwaysUnlessSpace => !spaced,
        };
        let word = [if prefix { b" ".as_slice() } else { b"" }, document].concat();
        let merging = Merging::new(self);
        if let Some(&token) = merging.index.get(word.as_slice()).filter(|_| *whole_words) {
            return Some(vec![self.ids[token as usize]]);
        }
        let parts = merging.merge(&word, (1..=word.len()).collect());
        parts.iter().map(|part| merging.index.get(*part).map(|&token| self.ids[token as usize])).collect()
    }

    pub fn normalize(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for step in &self.steps {
            text = match step {
                Step::Form(form) => plainly(*form, &text),
                Step::Prepend(_) if text.is_empty() => text,
                Step::Prepend(before) => format!("{before}{text}"),
                Step::Replace(old, new) => text.replace(old, new),
            };
        }
        text
    }

    /// A text without added tokens; `first` if a document begins with it.
    fn stretch(&self, merging: &Merging, text: &str, first: bool, ids: &mut Vec<u32>) {
        let spaces = matches!(self.kind, Kind::Characters { .. }).then_some('\u{2581}');
        let spaced = text.starts_with(' ') || spaces.is_some_and(|space| text.starts_with(space));
        let prefix = match self.prefix {
            Prefix::Never => false,
            Prefix::First => first,
            Prefix::Always => true,
            Prefix::FirstUnlessSpace => first && !spaced,
            Prefix::AlwaysUnlessSpace => !spaced,
        };
        let text = if prefix { format!(" {text}") } else { text.to_owned() };
        match &self.kind {
            Kind::Bytes { split, whole_words } => {
                let each = |word: &[u8]| match merging.index.get(word) {
                    Some(&token) if *whole_words => ids.push(self.ids[token as usize]),
                    _ => {
                        let units = (1..=word.len()).collect();
                        ids.extend(
                            merging.merge(word, units).iter().map(|part| self.ids[merging.index[*part] as usize]),
                        );
                    }
                };
                split.reference_for_each(&text, each).expect("these texts are short");
            }
            Kind::Characters { of_bytes, unknown, fuse } => {
                let text = text.replace(' ', "\u{2581}");
                let units = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
                let mut after_unknown = false;
                for part in merging.merge(text.as_bytes(), units) {
                    match (merging.index.get(part), of_bytes) {
                        (Some(&token), _) => ids.push(self.ids[token as usize]),
                        (None, Some(of_bytes)) => ids.extend(part.iter().map(|&byte| of_bytes[usize::from(byte)])),
                        (None, None) if *fuse && after_unknown => {}
                        (None, None) => ids.push(*unknown),
                    }
                    after_unknown = !merging.index.contains_key(part);
                }
            }
        }
    }
}

/// A whole text in a form.
pub fn plainly(form: Form, text: &str) -> String {
    match form {
        Form::Nfc => text.nfc().map(|(c, _)| c).collect(),
        Form::Nfd => text.nfd().map(|(c, _)| c).collect(),
        Form::Nfkc => text.nfkc().map(|(c, _)| c).collect(),
        Form::Nfkd => text.nfkd().map(|(c, _)| c).collect(),
        Form::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
        Form::StripAccents => text.chars().filter(|&c| !is_combining_mark(c)).collect(),
    }
}

/// Looks pairs up.
struct Merging<'d> {
    index: HashMap<&'d [u8], u32>,
    /// Of a pair that is listed twice the last counts, as in HF `tokenizers`.
    listed: Option<HashMap<[u32; 2], usize>>,
}

impl<'d> Merging<'d> {
    fn new(definition: &'d Definition) -> Merging<'d> {
        let tokens = definition.tokens.iter().map(Vec::as_slice);
        let listed = definition.merges.as_ref();
        Merging {
            index: tokens.zip(0..).collect(),
            listed: listed.map(|merges| merges.iter().enumerate().map(|(rank, &pair)| (pair, rank)).collect()),
        }
    }

    fn rank(&self, left: &[u8], right: &[u8], both: &[u8]) -> usize {
        let rank = match &self.listed {
            None => self.index.get(both).map(|&rank| rank as usize),
            Some(listed) => match (self.index.get(left), self.index.get(right)) {
                (Some(&left), Some(&right)) => listed.get(&[left, right]).copied(),
                _ => None,
            },
        };
        rank.unwrap_or(usize::MAX)
    }

    /// The parts of `word`, whose units end at `ends`: always the pair of the lowest rank is merged, the leftmost of
    /// equal ones. Only the ranks beside a merge are looked up anew.
    fn merge<'w>(&self, word: &'w [u8], mut ends: Vec<usize>) -> Vec<&'w [u8]> {
        let start = |ends: &[usize], part: usize| if part == 0 { 0 } else { ends[part - 1] };
        let rank = |ends: &[usize], part: usize| {
            let (from, middle, to) = (start(ends, part), ends[part], ends[part + 1]);
            self.rank(&word[from..middle], &word[middle..to], &word[from..to])
        };
        let mut ranks: Vec<usize> = (1..ends.len()).map(|part| rank(&ends, part - 1)).collect();
        while let Some((part, _)) =
            ranks.iter().enumerate().min_by_key(|(_, rank)| **rank).filter(|(_, rank)| **rank != usize::MAX)
        {
            ends.remove(part);
            ranks.remove(part);
            for beside in part.saturating_sub(1)..(part + 1).min(ranks.len()) {
                ranks[beside] = rank(&ends, beside);
            }
        }
        (0..ends.len()).map(|part| &word[start(&ends, part)..ends[part]]).collect()
    }
}

enum Part<'t> {
    Token(u32),
    Text(&'t str),
}

/// The tokens in `text` and what lies between them, and whether each is at its start.
fn parts<'t>(text: &'t str, tokens: &[(String, &AddedToken)]) -> Vec<(Part<'t>, bool)> {
    static WORD: OnceLock<Regex> = OnceLock::new();
    let word = WORD.get_or_init(|| Regex::new(r"\A\w").expect("a regex"));
    let is_word = |c: char| word.is_match(c.encode_utf8(&mut [0; 4])).is_ok_and(|found| found);
    let mut parts = vec![];
    let (mut at, mut done) = (0, 0);
    while let Some(here) = text[at..].chars().next() {
        // The longest; of equal texts the first.
        let found = tokens.iter().rev().filter(|(spelled, _)| text[at..].starts_with(spelled.as_str()));
        let Some((spelled, token)) = found.max_by_key(|(spelled, _)| spelled.len()) else {
            at += here.len_utf8();
            continue;
        };
        let (mut start, mut end) = (at, at + spelled.len());
        at = end;
        if token.single_word && (text[..start].ends_with(is_word) || text[end..].starts_with(is_word)) {
            continue;
        }
        if token.left_strip {
            start = text[..start].trim_end().len().max(done);
        }
        if token.right_strip {
            end = text.len() - text[end..].trim_start().len();
        }
        if done < start {
            parts.push((Part::Text(&text[done..start]), done == 0));
        }
        parts.push((Part::Token(token.id), start == 0));
        (done, at) = (end, end);
    }
    if done < text.len() {
        parts.push((Part::Text(&text[done..]), done == 0));
    }
    parts
}
