//! The named patterns, and `Split`: one of them, none, or the user's own regex.
//!
//! In: what the user wrote after `split=`. Out: a `Split` that cuts texts and can say its regex for tokenizer.json.
//! The named patterns are tiktoken's, in the plain form that Oniguruma (HF tokenizers) and fancy-regex read alike:
//! no possessive quantifiers, because `{1,3}+` means something else to Oniguruma, and no `$`, which it takes for the
//! end of a line. tiktoken's possessive forms give the same pretokens, with one exception: its present cl100k takes
//! white space at the very end of a text as one pretoken, where the plain form (tiktoken's own first one, and what
//! HF tokenizers run) cuts after the last newline in it. Ours is the plain one.

use super::{fast, reference};
use crate::error::{Error, Result};
use fancy_regex::Regex;
use std::sync::OnceLock;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Where a text may be cut before merges are learnt.
///
/// Cheap to clone. Threads may share one, but a clone each is faster for a regex of the user's own: clones do not
/// contend for its scratch memory.
#[derive(Clone, Debug)]
pub struct Split(Kind);

#[derive(Clone, Debug)]
enum Kind {
    None,
    Named(Named),
    // Boxed: a compiled regex is much larger than the other kinds.
    Own(Box<Regex>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Gpt2,
    Cl100k,
    O200k,
}

impl Named {
    fn name(self) -> &'static str {
        match self {
            Named::Gpt2 => "gpt2",
            Named::Cl100k => "cl100k",
            Named::O200k => "o200k",
        }
    }

    fn pattern(self) -> &'static str {
        match self {
            Named::Gpt2 => GPT2,
            Named::Cl100k => CL100K,
            Named::O200k => O200K,
        }
    }

    fn regex(self) -> &'static Regex {
        static REGEXES: [OnceLock<Regex>; 3] = [const { OnceLock::new() }; 3];
        REGEXES[self as usize]
            .get_or_init(|| reference::compile(self.pattern(), true).expect("the named patterns compile"))
    }
}

/// Something that is compiled once for each scanner.
pub(crate) trait Visitor {
    type Out;
    fn scanner<S: fast::Scanner>(self) -> Self::Out;
    fn whole(self) -> Self::Out;
    fn general(self, split: &Split) -> Self::Out;
}

impl Split {
    pub(crate) fn visit<V: Visitor>(&self, visitor: V) -> V::Out {
        match &self.0 {
            Kind::None => visitor.whole(),
            Kind::Named(Named::Gpt2) => visitor.scanner::<fast::Gpt2>(),
            Kind::Named(Named::Cl100k) => visitor.scanner::<fast::Cl100k>(),
            Kind::Named(Named::O200k) => visitor.scanner::<fast::O200k>(),
            Kind::Own(_) => visitor.general(self),
        }
    }

    /// `gpt2`, `cl100k`, `o200k`, `none` (a document is one pretoken), or any other text: a regex in fancy-regex
    /// syntax. A regex that is letter for letter a named pattern is that named split, and as fast.
    pub fn new(spec: &str) -> Result<Split> {
        for named in [Named::Gpt2, Named::Cl100k, Named::O200k] {
            if spec == named.name() || spec == named.pattern() {
                return Ok(Split(Kind::Named(named)));
            }
        }
        match spec {
            "none" => Ok(Split(Kind::None)),
            "" => Err(Error::Split(format!("split ``: an empty regex would cut between all characters. {CHOICES}"))),
            _ => match reference::compile(spec, false) {
                Ok(regex) => Ok(Split(Kind::Own(Box::new(regex)))),
                Err(why) => Err(Error::Split(format!(
                    "split `{spec}`: not the name of a split, and as a regex it does not compile: {why}. {CHOICES}"
                ))),
            },
        }
    }

    /// The regex, in a form that HF tokenizers reads the same way if the split is a named one. None for `none`.
    pub fn pattern(&self) -> Option<&str> {
        match &self.0 {
            Kind::None => None,
            Kind::Named(named) => Some(named.pattern()),
            Kind::Own(regex) => Some(regex.as_str()),
        }
    }

    /// `gpt2`, `cl100k`, `o200k`, `none` or `regex`.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::None => "none",
            Kind::Named(named) => named.name(),
            Kind::Own(_) => "regex",
        }
    }

    /// Calls `each` with every pretoken of `text` in order; concatenated they are `text`, always.
    ///
    /// Only a regex of the user's own can fail (too much backtracking). No pretoken is empty; an empty text has none.
    #[inline]
    pub fn for_each<'t>(&self, text: &'t str, each: impl FnMut(&'t [u8])) -> Result<()> {
        match &self.0 {
            Kind::None => whole(text, each),
            Kind::Named(Named::Gpt2) => fast::for_each::<fast::Gpt2>(text, each),
            Kind::Named(Named::Cl100k) => fast::for_each::<fast::Cl100k>(text, each),
            Kind::Named(Named::O200k) => fast::for_each::<fast::O200k>(text, each),
            Kind::Own(regex) => return reference::for_each(regex, text, each),
        }
        Ok(())
    }
}

const CHOICES: &str = "Choose gpt2, cl100k, o200k, none, or a regex in fancy-regex syntax.";

/// As [`Split::for_each`], by the regex: the definition, 10 to 80 times slower for the named splits.
///
/// The engine keeps at most a million places to go back to, so white space in a run longer than that is an error
/// here; the scanners have no such limit.
pub fn reference_for_each<'t>(split: &Split, text: &'t str, each: impl FnMut(&'t [u8])) -> Result<()> {
    match &split.0 {
        Kind::None => {
            whole(text, each);
            Ok(())
        }
        Kind::Named(named) => reference::for_each(named.regex(), text, each),
        Kind::Own(regex) => reference::for_each(regex, text, each),
    }
}

fn whole<'t>(text: &'t str, mut each: impl FnMut(&'t [u8])) {
    if !text.is_empty() {
        each(text.as_bytes());
    }
}
