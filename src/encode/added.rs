//! Added tokens: texts that are tokens by themselves, found before anything else is done with a document.
//!
//! The rules are those of HF `tokenizers`: of two that begin at one place the longer is taken; `single_word` wants no
//! letter, digit or underscore on either side; `lstrip` and `rstrip` take the white space beside the token with them;
//! tokens that are `normalized` are looked for in the normalized text, the others before. Special tokens are looked for
//! only where the caller asks for them. The oracles are HF `tokenizers`, and tiktoken's `allowed_special`.

use super::normalize::{Normalizer, Scratch};
use crate::error::{Error, Result};
use crate::lock;
use aho_corasick::{AhoCorasick, MatchKind};
use regex_syntax::is_word_character;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// A text that is a token.
#[derive(Clone, Debug)]
pub struct AddedToken {
    /// What a document says.
    pub text: String,
    /// What is written for it.
    pub id: u32,
    /// Looked for only if the caller asks for it.
    pub special: bool,
    /// Looked for in the normalized text.
    pub normalized: bool,
    /// Only where no letter, digit or underscore is beside it.
    pub single_word: bool,
    /// The white space before it belongs to it.
    pub left_strip: bool,
    /// The white space after it belongs to it.
    pub right_strip: bool,
}

/// Which special tokens a call looks for.
#[derive(Debug)]
pub enum Special {
    /// None: their text is text.
    Plain,
    /// All.
    Parse,
    /// These.
    Set(Vec<String>),
}

/// One found token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

/// All added tokens of a vocabulary.
#[derive(Default)]
pub struct Added {
    /// With the texts that are looked for.
    tokens: Vec<AddedToken>,
    /// The text of each as the vocabulary has it, which is what callers ask for.
    names: Vec<String>,
    plain: OnceLock<Arc<Finder>>,
    parse: OnceLock<Arc<Finder>>,
    sets: Mutex<HashMap<Vec<String>, Arc<Finder>>>,
}

/// Sets of special tokens that are remembered; a program uses one or two.
const MOST_SETS: usize = 16;

impl Added {
    /// `normalizer` is applied to the tokens that are looked for in normalized text.
    pub fn new(mut tokens: Vec<AddedToken>, normalizer: Option<&Normalizer>) -> Result<Added> {
        let names = tokens.iter().map(|token| token.text.clone()).collect();
        for token in &mut tokens {
            if let Some(normalizer) = normalizer.filter(|_| token.normalized) {
                token.text = normalizer.apply(&token.text, &mut Scratch::default()).to_owned();
            }
            if token.text.is_empty() {
                return Err(Error::Tokenizer(format!(
                    "added token {} has no text; expected at least a character.",
                    token.id
                )));
            }
        }
        let strips = tokens.iter().any(|token| token.right_strip);
        if let Some(token) = tokens.iter().find(|token| strips && token.text.starts_with(char::is_whitespace)) {
            return Err(Error::Tokenizer(format!(
                "added token {:?} begins with white space, and another one takes white space after it away (rstrip): \
                 which of them gets it is not defined. Use the tokenizer's own library.",
                token.text
            )));
        }
        Ok(Added { tokens, names, ..Added::default() })
    }

    /// The largest id of any.
    pub fn largest_id(&self) -> u32 {
        self.tokens.iter().map(|token| token.id).max().unwrap_or(0)
    }

    /// What looks for the tokens that `special` asks for, and for those that are not special.
    pub fn finder(&self, special: &Special) -> Result<Arc<Finder>> {
        let named = || self.tokens.iter().zip(&self.names);
        let make = |wanted: &dyn Fn(&String) -> bool| {
            let tokens = named().filter(|(token, name)| !token.special || wanted(name));
            Finder::new(tokens.map(|(token, _)| token.clone()).collect())
        };
        match special {
            Special::Plain => cached(&self.plain, || make(&|_| false)),
            Special::Parse => cached(&self.parse, || make(&|_| true)),
            Special::Set(texts) => {
                let unknown = texts.iter().find(|&text| !named().any(|(token, name)| token.special && name == text));
                if let Some(unknown) = unknown {
                    return Err(Error::Tokenizer(format!(
                        "special: {unknown:?} is not a special token of this tokenizer."
                    )));
                }
                let mut sets = lock(&self.sets);
                if let Some(found) = sets.get(texts) {
                    return Ok(found.clone());
                }
                let finder = Arc::new(make(&|name| texts.contains(name))?);
                if sets.len() >= MOST_SETS {
                    sets.clear();
                }
                sets.insert(texts.to_vec(), finder.clone());
                Ok(finder)
            }
        }
    }
}

fn cached(place: &OnceLock<Arc<Finder>>, make: impl FnOnce() -> Result<Finder>) -> Result<Arc<Finder>> {
    match place.get() {
        Some(finder) => Ok(finder.clone()),
        None => {
            let finder = Arc::new(make()?);
            Ok(place.get_or_init(|| finder).clone())
        }
    }
}

/// Looks for some of the added tokens.
pub struct Finder {
    pub raw: Option<Search>,
    pub normalized: Option<Search>,
}

impl Finder {
    fn new(tokens: Vec<AddedToken>) -> Result<Finder> {
        let (normalized, raw): (Vec<_>, Vec<_>) = tokens.into_iter().partition(|token| token.normalized);
        Ok(Finder { raw: Search::new(raw)?, normalized: Search::new(normalized)? })
    }
}

/// Looks for tokens in one text.
pub struct Search {
    tokens: Vec<AddedToken>,
    automaton: AhoCorasick,
}

impl Search {
    fn new(tokens: Vec<AddedToken>) -> Result<Option<Search>> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|why| Error::Tokenizer(format!("the added tokens cannot be searched for: {why}.")))?;
        Ok(Some(Search { tokens, automaton }))
    }

    /// Every token in `text`, in order; none overlaps another.
    pub fn find(&self, text: &str, found: &mut Vec<Found>) {
        found.clear();
        let mut last_end = 0;
        for one in self.automaton.find_iter(text) {
            let token = &self.tokens[one.pattern()];
            let (mut start, mut end) = (one.start(), one.end());
            if token.single_word {
                let before = text[..start].chars().next_back().is_some_and(is_word_character);
                let after = text[end..].chars().next().is_some_and(is_word_character);
                if before || after {
                    continue;
                }
            }
            if token.left_strip {
                start = text[..start].trim_end().len().max(last_end);
            }
            if token.right_strip {
                end = text.len() - text[end..].trim_start().len();
            }
            found.push(Found { start, end, id: token.id });
            last_end = end;
        }
    }
}
