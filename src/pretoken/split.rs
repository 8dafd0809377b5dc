//! `Split`: a named one, a regex of the user's own, or a sequence of them.
//!
//! In: what the user wrote after `split=`. Out: a `Split` that cuts texts and can say its regexes for tokenizer.json.
//!
//! A split is written as a name or alias of `table`, or as a regex. What has one of the characters `\^$|?*+()[]{}` in it
//! is a regex; anything else is a name, and an error if no split is called that. (A dot makes no regex: names have dots.)
//! `regex:` before a regex leaves no doubt.

use super::own::Own;
use super::table::{self, Named, TABLE};
use super::{fast, reference};
use crate::error::{Error, Result};
use fancy_regex::Regex;
use std::sync::OnceLock;

/// Where a text may be cut before merges are learnt.
///
/// Cheap to clone. Threads may share one, but a clone each is faster for a regex of the user's own: clones do not
/// contend for its scratch memory.
#[derive(Clone, Debug)]
pub struct Split(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Named(&'static Named),
    // Boxed: a compiled regex is much larger than the other kinds.
    Own(Box<Own>),
    /// None of these is a sequence itself.
    Sequence(Vec<Split>),
}

/// What a caller does with a split, compiled once for each scanner.
pub trait Visitor {
    /// What comes of it.
    type Out;
    /// The split has a hand-written scanner.
    fn scanner<S: fast::Scanner>(self) -> Self::Out;
    /// The split does not cut: a text is one pretoken.
    fn whole(self) -> Self::Out;
    /// A regex of the user's own, or a sequence: `split.for_each` is the way.
    fn general(self, split: &Split) -> Self::Out;
}

/// The characters that make a text a regex.
const METACHARACTERS: &[char] = &['\\', '^', '$', '|', '?', '*', '+', '(', ')', '[', ']', '{', '}'];

impl Split {
    /// A name, a regex in fancy-regex syntax, or `regex:` and a regex; see the top of this file. A regex that is letter
    /// for letter the pattern of a named split is that split, and as fast.
    pub fn new(spec: &str) -> Result<Split> {
        if let Some(named) = table::by_name(spec) {
            return Ok(Split(Kind::Named(named)));
        }
        let regex = match spec.strip_prefix("regex:") {
            Some(regex) => regex,
            None if spec.contains(METACHARACTERS) => spec,
            None => return Err(unknown(spec)),
        };
        if let Some(named) = table::by_patterns(&[regex]) {
            return Ok(Split(Kind::Named(named)));
        }
        if regex.is_empty() {
            let names = table::names();
            return Err(Error::Split(format!(
                "pretokenizer `{spec}`: an empty regex would cut between all characters. Choose {names}, or a regex."
            )));
        }
        match Own::new(regex) {
            Ok(own) => Ok(Split(Kind::Own(Box::new(own)))),
            Err(why) => Err(Error::Split(format!(
                "pretokenizer `{regex}`: not the name of one, and as a regex it does not compile: {why}. \
                 Choose {}, or a regex in fancy-regex syntax.",
                table::names()
            ))),
        }
    }

    /// Each of `specs` cuts every piece that those before it left, as if it were a whole text. No specs are `none`.
    ///
    /// A sequence that is letter for letter a named one is that split, and as fast.
    pub fn sequence<S: AsRef<str>>(specs: &[S]) -> Result<Split> {
        let mut steps = Vec::with_capacity(specs.len());
        for spec in specs {
            match Split::new(spec.as_ref())?.0 {
                Kind::Named(named) if named.patterns.is_empty() => {}
                kind => steps.push(Split(kind)),
            }
        }
        if steps.len() == 1 {
            return Ok(steps.remove(0));
        }
        let patterns: Vec<&str> = steps.iter().flat_map(Split::patterns).collect();
        match table::by_patterns(&patterns) {
            Some(named) => Ok(Split(Kind::Named(named))),
            None => Ok(Split(Kind::Sequence(steps))),
        }
    }

    /// Its regexes, to be applied one after another, and if the split is a named one in a form that HF tokenizers reads
    /// the same way. None for `none`.
    pub fn patterns(&self) -> Vec<&str> {
        match &self.0 {
            Kind::Named(named) => named.patterns.to_vec(),
            Kind::Own(own) => vec![own.pattern()],
            Kind::Sequence(steps) => steps.iter().flat_map(Split::patterns).collect(),
        }
    }

    /// The name of a named split, or `regex` or `sequence`.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::Named(named) => named.name,
            Kind::Own(_) => "regex",
            Kind::Sequence(_) => "sequence",
        }
    }

    /// Whether it does not cut: a text is one pretoken, and may be any bytes.
    pub fn is_none(&self) -> bool {
        matches!(&self.0, Kind::Named(named) if named.patterns.is_empty())
    }

    /// Calls the method of `visitor` that fits.
    #[inline]
    pub(crate) fn visit<V: Visitor>(&self, visitor: V) -> V::Out {
        match &self.0 {
            Kind::Named(named) => named.visit(visitor),
            _ => visitor.general(self),
        }
    }

    /// Calls `each` with every pretoken of `text` in order; concatenated they are `text`, always.
    ///
    /// Only a regex of the user's own can fail (too much backtracking). No pretoken is empty; an empty text has none.
    #[inline]
    pub fn for_each<'t>(&self, text: &'t str, each: impl FnMut(&'t [u8])) -> Result<()> {
        self.visit(ForEach { text, each })
    }

    /// As [`Split::for_each`], by the regexes: the definition, 10 to 80 times slower for the named splits.
    ///
    /// The engine keeps at most a million places to go back to, so white space in a run longer than that is an error
    /// here; the scanners have no such limit.
    pub fn reference_for_each<'t>(&self, text: &'t str, mut each: impl FnMut(&'t [u8])) -> Result<()> {
        static REGEXES: [OnceLock<Vec<Regex>>; TABLE.len()] = [const { OnceLock::new() }; TABLE.len()];
        let mut regexes: Vec<&Regex> = vec![];
        for step in self.steps() {
            match &step.0 {
                Kind::Named(named) => {
                    let row = TABLE.iter().position(|row| row.name == named.name).expect("it is a row of the table");
                    let compile = |&pattern: &&str| reference::compile(pattern, true).expect("named patterns compile");
                    regexes.extend(REGEXES[row].get_or_init(|| named.patterns.iter().map(compile).collect()));
                }
                Kind::Own(own) => regexes.push(own.reference()),
                Kind::Sequence(_) => unreachable!("no sequence is inside another"),
            }
        }
        in_turn(&regexes, text, &mut each, &|regex, text, each| reference::for_each(regex, text, each))
    }

    fn steps(&self) -> &[Split] {
        match &self.0 {
            Kind::Sequence(steps) => steps,
            _ => std::slice::from_ref(self),
        }
    }
}

struct ForEach<'t, F> {
    text: &'t str,
    each: F,
}

impl<'t, F: FnMut(&'t [u8])> Visitor for ForEach<'t, F> {
    type Out = Result<()>;

    #[inline]
    fn scanner<S: fast::Scanner>(self) -> Result<()> {
        fast::for_each::<S>(self.text, self.each);
        Ok(())
    }

    fn whole(mut self) -> Result<()> {
        if !self.text.is_empty() {
            (self.each)(self.text.as_bytes());
        }
        Ok(())
    }

    fn general(mut self, split: &Split) -> Result<()> {
        match &split.0 {
            Kind::Own(own) => own.for_each(self.text, self.each),
            _ => in_turn(split.steps(), self.text, &mut self.each, &|step, text, each| step.for_each(text, each)),
        }
    }
}

type Each<'e, 't> = &'e mut dyn FnMut(&'t [u8]);

/// Cuts `text` by the first of `steps`, each piece by the second, and so on. A step that fails ends it all.
fn in_turn<'t, S>(
    steps: &[S],
    text: &'t str,
    each: Each<'_, 't>,
    cut: &dyn Fn(&S, &'t str, Each<'_, 't>) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = steps.split_first() else {
        if !text.is_empty() {
            each(text.as_bytes());
        }
        return Ok(());
    };
    if rest.is_empty() {
        return cut(first, text, each);
    }
    let mut failed = Ok(());
    let mut start = 0;
    cut(first, text, &mut |piece| {
        let end = start + piece.len();
        // Every cut is between two characters.
        if failed.is_ok() {
            failed = in_turn(rest, &text[start..end], each, cut);
        }
        start = end;
    })?;
    failed
}

fn unknown(spec: &str) -> Error {
    let hint = match table::hint(spec) {
        Some(hint) => format!(" {hint}"),
        None if spec.is_empty() => String::new(),
        None => format!(" If it is a regex, write `regex:{spec}`."),
    };
    Error::Split(format!("pretokenizer `{spec}`: none has this name. Choose {}, or a regex.{hint}", table::names()))
}
