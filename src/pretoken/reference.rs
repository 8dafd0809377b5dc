//! The regex itself: what every other way of splitting must equal.
//!
//! In: a regex and a document. Out: its pretokens, by one rule for every regex:
//! each match is a pretoken; the text between two matches is a separate pretoken; an empty match cuts the text
//! where it stands and makes no pretoken. So no byte is ever lost, whatever the regex.
//! The oracle is HF tokenizers' `Split(Regex(p), behavior="isolated")`, where its Oniguruma reads `p` the same way.

use crate::error::{Error, Result};
use fancy_regex::{Regex, RegexBuilder};

/// Compiles a regex in fancy-regex syntax. `patient` lifts the limit on backtracking; only for patterns known to
/// need no more than a few passes over a run of white space.
pub fn compile(pattern: &str, patient: bool) -> std::result::Result<Regex, fancy_regex::Error> {
    let mut builder = RegexBuilder::new(pattern);
    if patient {
        builder.backtrack_limit(usize::MAX);
    }
    builder.build()
}

/// Calls `each` with every pretoken of `text` in order.
///
/// A search that the engine gives up (too much backtracking) is an error with its place, never a skip; `each` has
/// by then been called for what came before.
pub fn for_each<'t>(regex: &Regex, text: &'t str, each: impl FnMut(&'t [u8])) -> Result<()> {
    cut(regex, text, regex.find_iter(text).map(|found| found.map(|found| (found.start(), found.end()))), each)
}

/// The rule, given the start and end of each match; `regex` is for messages.
pub fn cut<'t>(
    regex: &Regex,
    text: &'t str,
    matches: impl Iterator<Item = std::result::Result<(usize, usize), fancy_regex::Error>>,
    mut each: impl FnMut(&'t [u8]),
) -> Result<()> {
    let bytes = text.as_bytes();
    let mut from = 0;
    for found in matches {
        let (start, end) = found.map_err(|why| gave_up(regex, from, &why.to_string()))?;
        // A `\K` inside a look-around can put a match behind the last one, or its start behind its end.
        if start < from || end < start {
            return Err(gave_up(regex, from, &format!("the match {:?} goes backwards", start..end)));
        }
        for end in [start, end] {
            if end > from {
                each(&bytes[from..end]);
                from = end;
            }
        }
    }
    if from < bytes.len() {
        each(&bytes[from..]);
    }
    Ok(())
}

fn gave_up(regex: &Regex, from: usize, why: &str) -> Error {
    Error::Split(format!(
        "pretokenizer `{}`: the regex failed after byte {from} of the document: {why}. \
         Write it so that it needs less backtracking (possessive `++`, atomic groups), or choose a named split.",
        regex.as_str()
    ))
}
