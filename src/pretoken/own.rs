//! A regex of the user's own, as fast as it can be made without changing what it means.
//!
//! In: a regex in fancy-regex syntax. Out: the same pretokens as `reference` gives for it.
//!
//! fancy-regex runs a regex with any look-around in it on a backtracking machine, at 15 to 30 MB/s. Here the
//! alternatives of the regex are classified:
//!
//! - `Exact`: neither look-around nor anything else that needs the machine. Left to `regex-automata`.
//! - `Run`: one class of characters repeated, and a look at what comes next, such as `\s+(?!\S)`: carried out by hand.
//! - `Hard`: everything else.
//!
//! A regex that is one class repeated needs no search at all: every character is in the class or not.
//!
//! For each alternative there is a regular regex that matches wherever (but not only where) the alternative does: for a
//! look-around it has nothing, so it asks for less. All of them are one `regex-automata` search. It gives the first place
//! where the true regex can match at all, and the first alternative that may: if that one is exact, the match is the true
//! one. If it is a run that fails there, those after it are tried at the same place, and then the search goes on behind
//! it. If it is hard, fancy-regex finds the next match from that place on, which is the answer by definition.

use super::reference;
use crate::error::Result;
use fancy_regex::{Assertion, Expr, LookAround, Regex};
use regex_automata::{Anchored, Input, meta};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// A compiled regex.
#[derive(Clone, Debug)]
pub struct Own {
    reference: Regex,
    /// None where only fancy-regex can run it.
    quick: Option<Quick>,
    /// Of a regex that is a class repeated, and nothing else: `[^ ]+`.
    class: Option<CharSet>,
}

/// Where a match starts and ends.
type Found = Option<(usize, usize)>;

#[derive(Clone, Debug)]
struct Quick {
    /// A pattern for each of `alternatives`.
    all: meta::Regex,
    alternatives: Vec<Alternative>,
}

#[derive(Clone, Debug)]
enum Alternative {
    Exact,
    /// With it the patterns of all alternatives after it, if there are any.
    Run(Run, Option<meta::Regex>),
    Hard,
}

/// A class of characters `least` to `most` times, as often as possible, and what must hold behind it.
#[derive(Clone, Debug)]
struct Run {
    class: CharSet,
    least: usize,
    most: usize,
    /// Nothing is given back: if the longest run will not do, none does.
    possessive: bool,
    next: Next,
}

#[derive(Clone, Debug)]
enum Next {
    /// `(?=class)`
    Is(CharSet),
    /// `(?!class)`
    IsNot(CharSet),
    /// `$`
    End,
}

impl Own {
    /// Compiles `pattern`, which must not be empty.
    pub fn new(pattern: &str) -> std::result::Result<Own, fancy_regex::Error> {
        let reference = reference::compile(pattern, false)?;
        let class = match Expr::parse_tree(pattern)?.expr {
            Expr::Repeat { child, lo: 1, hi: usize::MAX, greedy: true } => CharSet::of(&child),
            _ => None,
        };
        Ok(Own { reference, quick: Quick::new(pattern), class })
    }

    /// As it was given.
    pub fn pattern(&self) -> &str {
        self.reference.as_str()
    }

    /// fancy-regex's own.
    pub fn reference(&self) -> &Regex {
        &self.reference
    }

    /// As `reference::for_each`.
    pub fn for_each<'t>(&self, text: &'t str, each: impl FnMut(&'t [u8])) -> Result<()> {
        if let Some(class) = &self.class {
            class.runs(text, each);
            return Ok(());
        }
        match &self.quick {
            Some(quick) => reference::cut(&self.reference, text, quick.matches(&self.reference, text), each),
            None => reference::for_each(&self.reference, text, each),
        }
    }

    /// Whether fancy-regex only runs where look-around demands it.
    #[cfg(test)]
    pub fn is_quick(&self) -> bool {
        self.quick.is_some()
    }
}

impl Quick {
    fn new(pattern: &str) -> Option<Quick> {
        let tree = Expr::parse_tree(pattern).ok()?;
        if is_plain(&tree.expr) {
            // fancy-regex itself leaves all of it to `regex-automata`.
            let all = meta::Regex::new_many(&[written(&tree.expr)]).ok()?;
            return Some(Quick { all, alternatives: vec![Alternative::Exact] });
        }
        let children = match &tree.expr {
            Expr::Alt(children) => children.as_slice(),
            other => std::slice::from_ref(other),
        };
        // A pattern each: of several in one, `regex-syntax` takes out what all begin with, so that of `\S+a|\S+` the longest
        // `\S+` comes first, and not the first alternative.
        let mut patterns: Vec<String> = vec![];
        let mut alternatives: Vec<Alternative> = vec![];
        for child in children {
            let child = without_idle_atomics(child);
            let (alternative, pattern) = if is_regular(&child) {
                (Alternative::Exact, written(&child))
            } else if let Some(run) = Run::of(&child) {
                // One character is enough to be there: then the search stops after it, however long the run.
                let pattern = run.class.pattern();
                (Alternative::Run(run, None), pattern)
            } else {
                (Alternative::Hard, wherever(&child)?)
            };
            alternatives.push(alternative);
            patterns.push(pattern);
        }
        for (at, alternative) in alternatives.iter_mut().enumerate() {
            let after = &patterns[at + 1..];
            if let (Alternative::Run(_, rest), false) = (alternative, after.is_empty()) {
                *rest = Some(meta::Regex::new_many(after).ok()?);
            }
        }
        Some(Quick { all: meta::Regex::new_many(&patterns).ok()?, alternatives })
    }

    /// Every match in order, as fancy-regex's `find_iter` gives them.
    fn matches<'q>(
        &'q self,
        reference: &'q Regex,
        text: &'q str,
    ) -> impl Iterator<Item = std::result::Result<(usize, usize), fancy_regex::Error>> + 'q {
        let (mut from, mut last_end, mut barren) = (0, None, Barren::default());
        std::iter::from_fn(move || {
            while from <= text.len() {
                let (start, end) = match self.next(reference, text, from, &mut barren) {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(error) => {
                        from = text.len() + 1;
                        return Some(Err(error));
                    }
                };
                from = end;
                if start == end {
                    from += text[end..].chars().next().map_or(1, char::len_utf8);
                    // An empty match right behind another match does not count.
                    if last_end == Some(end) {
                        continue;
                    }
                }
                last_end = Some(end);
                return Some(Ok((start, end)));
            }
            from = text.len() + 1;
            None
        })
    }

    /// The first match that starts at `from` or later.
    #[inline]
    fn next(
        &self,
        reference: &Regex,
        text: &str,
        mut from: usize,
        barren: &mut Barren,
    ) -> std::result::Result<Found, fancy_regex::Error> {
        loop {
            let input = Input::new(text).range(from..);
            // Mostly one pretoken follows right behind the other. Then there is no need to search for its start.
            let found = self.all.search(&input.clone().anchored(Anchored::Yes)).or_else(|| self.all.search(&input));
            let Some(found) = found else { return Ok(None) };
            let (start, mut end, mut index) = (found.start(), found.end(), found.pattern().as_usize());
            loop {
                match &self.alternatives[index] {
                    Alternative::Exact => return Ok(Some((start, end))),
                    Alternative::Hard => {
                        let found = reference.find_from_pos(text, start)?;
                        return Ok(found.map(|found| (found.start(), found.end())));
                    }
                    Alternative::Run(run, rest) => {
                        if let Some(end) = run.end(text, start, index, barren) {
                            return Ok(Some((start, end)));
                        }
                        let here = input.clone().range(start..).anchored(Anchored::Yes);
                        let Some(found) = rest.as_ref().and_then(|rest| rest.search(&here)) else { break };
                        end = found.end();
                        index += 1 + found.pattern().as_usize();
                    }
                }
            }
            // What was found was a run, and the pattern of a run is one character.
            from = found.end();
        }
    }
}

/// How far a run of any length was last read. From a later place inside it the run fails: all ends that it could have
/// from there were tried before, and none would do. Without this a long run that fails would be read again from each
/// of its places.
#[derive(Default)]
struct Barren {
    alternative: usize,
    end: usize,
}

impl Run {
    fn of(alternative: &Expr) -> Option<Run> {
        let Expr::Concat(parts) = alternative else { return None };
        let [repeated, next] = parts.as_slice() else { return None };
        let (repeated, possessive) = match repeated {
            Expr::AtomicGroup(inner) => (&**inner, true),
            _ => (repeated, false),
        };
        let Expr::Repeat { child, lo, hi, greedy: true } = repeated else { return None };
        let next = match next {
            Expr::LookAround(what, LookAround::LookAhead) => Next::Is(CharSet::of(what)?),
            Expr::LookAround(what, LookAround::LookAheadNeg) => Next::IsNot(CharSet::of(what)?),
            Expr::Assertion(Assertion::EndText) => Next::End,
            _ => return None,
        };
        // An empty run is a match at every place; that is fancy-regex's to judge.
        (*lo > 0).then_some(())?;
        Some(Run { class: CharSet::of(child)?, least: *lo, most: *hi, possessive, next })
    }

    /// The end of the match that starts at `at`.
    fn end(&self, text: &str, at: usize, alternative: usize, barren: &mut Barren) -> Option<usize> {
        if barren.alternative == alternative && at < barren.end {
            return None;
        }
        let mut end = at;
        let mut taken = 0;
        let mut next = text[at..].chars();
        let mut beyond = next.next();
        while let Some(c) = beyond.filter(|&c| taken < self.most && self.class.contains(c)) {
            end += c.len_utf8();
            taken += 1;
            beyond = next.next();
        }
        if self.most == usize::MAX {
            *barren = Barren { alternative, end };
        }
        while taken >= self.least {
            let fits = match &self.next {
                Next::Is(class) => beyond.is_some_and(|c| class.contains(c)),
                Next::IsNot(class) => !beyond.is_some_and(|c| class.contains(c)),
                Next::End => beyond.is_none(),
            };
            if fits {
                return Some(end);
            }
            if self.possessive {
                break;
            }
            beyond = text[at..end].chars().next_back();
            end -= beyond?.len_utf8();
            taken -= 1;
        }
        None
    }
}

/// Whether `regex-automata` can run it.
fn is_plain(expr: &Expr) -> bool {
    match expr {
        Expr::Empty | Expr::Any { .. } | Expr::Literal { .. } | Expr::Delegate { .. } => true,
        Expr::Assertion(assertion) => matches!(
            assertion,
            Assertion::StartText
                | Assertion::EndText
                | Assertion::StartLine { crlf: false }
                | Assertion::EndLine { crlf: false }
                | Assertion::WordBoundary
                | Assertion::NotWordBoundary
        ),
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().all(is_plain),
        Expr::Group(inner) => is_plain(inner),
        Expr::Repeat { child, .. } => is_plain(child),
        _ => false,
    }
}

/// Whether `regex-automata` can run it, and gives what fancy-regex's machine gives where this is part of a regex that
/// needs the machine. They differ where something that may be empty is repeated: `(a??)+` is one of many.
fn is_regular(expr: &Expr) -> bool {
    fn repeats_no_empty(expr: &Expr) -> bool {
        match expr {
            Expr::Repeat { child, .. } => !may_be_empty(child) && repeats_no_empty(child),
            Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().all(repeats_no_empty),
            Expr::Group(inner) => repeats_no_empty(inner),
            _ => true,
        }
    }
    is_plain(expr) && repeats_no_empty(expr)
}

fn may_be_empty(expr: &Expr) -> bool {
    match expr {
        Expr::Any { .. } | Expr::Delegate { .. } => false,
        Expr::Literal { val, .. } => val.is_empty(),
        Expr::Concat(parts) => parts.iter().all(may_be_empty),
        Expr::Alt(parts) => parts.iter().any(may_be_empty),
        Expr::Group(inner) => may_be_empty(inner),
        Expr::Repeat { child, lo, .. } => *lo == 0 || may_be_empty(child),
        _ => true,
    }
}

fn written(plain: &Expr) -> String {
    let mut written = String::new();
    plain.to_str(&mut written, 1);
    written
}

/// A regular regex that matches at least wherever `expr` does; how far does not matter. None if there is no telling, as
/// with back references.
fn wherever(expr: &Expr) -> Option<String> {
    match expr {
        // How often it is repeated does not matter here.
        _ if is_plain(expr) => Some(written(expr)),
        Expr::LookAround(what, LookAround::LookAhead) => wherever(what),
        Expr::LookAround(..) => Some(String::new()),
        Expr::AtomicGroup(inner) => wherever(inner),
        Expr::Group(inner) => wherever(inner),
        Expr::Alt(parts) => {
            let parts: Option<Vec<String>> = parts.iter().map(wherever).collect();
            Some(format!("(?:{})", parts?.join("|")))
        }
        // Once is enough to be there, and the rest of it only asks for more.
        Expr::Repeat { child, lo, .. } => match lo {
            0 => Some(String::new()),
            _ => wherever(child),
        },
        Expr::Concat(parts) => {
            let mut pattern = String::new();
            for part in parts {
                match part {
                    // What must follow here need not follow what comes after it.
                    Expr::LookAround(_, LookAround::LookAhead) if pattern.is_empty() => {
                        let rest = Expr::Concat(parts[parts.iter().position(|p| p == part)? + 1..].to_vec());
                        let (ahead, rest) = (wherever(part)?, wherever(&rest)?);
                        return Some(if rest.is_empty() { ahead } else { rest });
                    }
                    Expr::LookAround(..) => {}
                    _ if is_plain(part) => pattern.push_str(&format!("(?:{})", written(part))),
                    // How far this one reaches is not known, so nothing can be said of what follows.
                    _ => {
                        pattern.push_str(&format!("(?:{})", wherever(part)?));
                        break;
                    }
                }
            }
            Some(pattern)
        }
        _ => None,
    }
}

/// The same without atomic groups and possessive quantifiers that change nothing, because what follows them never asks
/// for anything back: it cannot fail, or it begins with characters that the group has none of.
fn without_idle_atomics(alternative: &Expr) -> Expr {
    let parts = match alternative {
        Expr::Concat(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut plain: Vec<Expr> = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        plain.push(match part {
            Expr::AtomicGroup(inner) if is_regular(inner) && is_idle(inner, &parts[at + 1..]) => (**inner).clone(),
            _ => part.clone(),
        });
    }
    if plain.len() == 1 { plain.remove(0) } else { Expr::Concat(plain) }
}

fn is_idle(group: &Expr, rest: &[Expr]) -> bool {
    let never_fails = |part: &Expr| {
        let inner = if let Expr::AtomicGroup(inner) = part { inner } else { part };
        matches!(inner, Expr::Repeat { lo: 0, child, .. } if CharSet::of(child).is_some())
    };
    if rest.iter().all(never_fails) {
        return true;
    }
    let Expr::Repeat { child, greedy: true, .. } = group else { return false };
    let (Some(taken), Some(next)) = (CharSet::of(child), first_of(&rest[0])) else { return false };
    let mut both = taken.ranges;
    both.intersect(&next.ranges);
    both.ranges().is_empty()
}

/// What a part that is never empty begins with.
fn first_of(part: &Expr) -> Option<CharSet> {
    match part {
        Expr::AtomicGroup(inner) => first_of(inner),
        Expr::Repeat { child, lo, .. } if *lo > 0 => CharSet::of(child),
        _ => CharSet::of(part),
    }
}

/// A set of characters.
#[derive(Clone, Debug)]
struct CharSet {
    ascii: u128,
    ranges: ClassUnicode,
}

impl CharSet {
    /// The characters that `expr` matches, if it always matches exactly one.
    fn of(expr: &Expr) -> Option<CharSet> {
        let ranges = match expr {
            Expr::Literal { val, casei: false } => {
                let mut chars = val.chars();
                let only = chars.next()?;
                chars.next().is_none().then_some(())?;
                ClassUnicode::new([ClassUnicodeRange::new(only, only)])
            }
            Expr::Delegate { inner, casei: false } => match regex_syntax::parse(inner).ok()?.into_kind() {
                HirKind::Class(Class::Unicode(ranges)) => ranges,
                HirKind::Literal(literal) => {
                    let only = std::str::from_utf8(&literal.0).ok()?;
                    return CharSet::of(&Expr::Literal { val: only.to_owned(), casei: false });
                }
                _ => return None,
            },
            _ => return None,
        };
        let ascii = (0..128u8).filter(|&byte| contains(&ranges, byte as char)).fold(0, |set, byte| set | 1 << byte);
        Some(CharSet { ascii, ranges })
    }

    /// As a regex.
    fn pattern(&self) -> String {
        regex_syntax::hir::Hir::class(Class::Unicode(self.ranges.clone())).to_string()
    }

    /// The runs of characters that are in it, and of those that are not: what its repetition cuts a text into.
    fn runs<'t>(&self, text: &'t str, mut each: impl FnMut(&'t [u8])) {
        let bytes = text.as_bytes();
        let (mut start, mut inside) = (0, false);
        for (at, c) in text.char_indices() {
            if self.contains(c) != inside {
                inside = !inside;
                if at > start {
                    each(&bytes[start..at]);
                    start = at;
                }
            }
        }
        if start < bytes.len() {
            each(&bytes[start..]);
        }
    }

    #[inline]
    fn contains(&self, c: char) -> bool {
        if c.is_ascii() { self.ascii >> c as u32 & 1 != 0 } else { contains(&self.ranges, c) }
    }
}

fn contains(ranges: &ClassUnicode, c: char) -> bool {
    let ranges = ranges.ranges();
    let at = ranges.partition_point(|range| range.end() < c);
    ranges.get(at).is_some_and(|range| range.start() <= c)
}
