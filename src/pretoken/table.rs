//! The named splits: the one place that knows their names, patterns, scanners and properties.
//!
//! `_core.splits()` hands the table to Python, and everything there (help, messages, docs, tokenizer.json) reads it.
//! A split with several patterns is a sequence: each later pattern cuts each piece that the earlier ones left, as if it
//! were a whole text.
//!
//! The patterns are those of the models' publishers, in the plain form that Oniguruma (HF tokenizers) and fancy-regex
//! read alike: no possessive quantifiers, because `{1,3}+` means something else to Oniguruma, and no `$`, which it takes
//! for the end of a line. tiktoken's possessive forms give the same pretokens, with one exception: its present cl100k
//! takes white space at the very end of a text as one pretoken, where the plain form (tiktoken's own first one, and what
//! HF tokenizers run) cuts after the last newline in it. Ours is the plain one.

use super::classes::{IDEOGRAPHIC, Kinds, NUMBER};
use super::fast::{self, Joined};
use super::split::Visitor;

/// One named split.
#[derive(Debug)]
pub struct Named {
    /// What it is called; in lower case.
    pub name: &'static str,
    /// Other names for the same.
    pub aliases: &'static [&'static str],
    /// Its regexes, to be applied one after another; none for a split that does not cut.
    pub patterns: &'static [&'static str],
    /// A text may be cut before a space that follows a visible ASCII character, and before a line feed that follows an
    /// ASCII letter or digit: the pretokens of the two halves are those of the whole.
    pub cuts_at_spaces: bool,
    scanner: Scanner,
}

#[derive(Clone, Copy, Debug)]
enum Scanner {
    Whole,
    Gpt2,
    DigitsThenGpt2,
    Cl100k,
    Qwen2,
    Qwen35,
    O200k,
    Tekken,
    DeepSeekV3,
}

impl Named {
    /// Calls the method of `visitor` that fits, with the scanner as its type.
    #[inline]
    pub fn visit<V: Visitor>(&self, visitor: V) -> V::Out {
        match self.scanner {
            Scanner::Whole => visitor.whole(),
            Scanner::Gpt2 => self.scan::<fast::Gpt2, 0, V>(visitor),
            Scanner::DigitsThenGpt2 => self.scan::<fast::DigitsThenGpt2, NUMBER, V>(visitor),
            Scanner::Cl100k => self.scan::<fast::Cl100k, 0, V>(visitor),
            Scanner::Qwen2 => self.scan::<fast::Qwen2, 0, V>(visitor),
            Scanner::Qwen35 => self.scan::<fast::Qwen35, 0, V>(visitor),
            Scanner::O200k => self.scan::<fast::O200k, 0, V>(visitor),
            Scanner::Tekken => self.scan::<fast::Tekken, 0, V>(visitor),
            Scanner::DeepSeekV3 => self.scan::<fast::DeepSeekV3, { NUMBER | IDEOGRAPHIC }, V>(visitor),
        }
    }

    #[inline]
    fn scan<S: fast::Scanner, const ENDS: Kinds, V: Visitor>(&self, visitor: V) -> V::Out {
        if is_joined(self.name) { visitor.scanner::<Joined<S, ENDS>>() } else { visitor.scanner::<S>() }
    }
}

macro_rules! contraction {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

macro_rules! white {
    () => {
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// o200k's words: capitals then small letters, with at least one of these, or of those; `$after` follows each.
macro_rules! cased_words {
    ($after:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $after,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $after
        )
    };
}

/// A split for superwords: `$apart` are the words that stay apart, and the text between two of them is one pretoken.
/// Everything is matched, as tiktoken drops what is not. A run of `$symbols` at whose start no such word begins has none
/// in it, nor do letters: so a run is looked at once, and not from each of its characters to its end.
macro_rules! between {
    ($apart:expr, $symbols:expr) => {
        concat!($apart, r"|(?:\p{L}+|(?!", $apart, ")(?:", $symbols, r"+|[\s\S]))+")
    };
}

/// The words that stay apart: numbers, `$line_end`, and white space at line ends and before more of it. All their ends
/// are ends of words of the first split.
macro_rules! borders {
    ($numbers:expr, $line_end:expr, $symbols:expr) => {
        between!(concat!($numbers, "|", $line_end, r"|\s*[\r\n]+|\s+(?!\S)"), $symbols)
    };
}

/// The same where symbols and the newlines after them are one word.
macro_rules! symbol_borders {
    ($numbers:expr, $symbols:expr) => {
        borders!($numbers, concat!(" ?", $symbols, r"+[\r\n]+"), $symbols)
    };
}

/// Where o200k's symbols end a line. A mark is a symbol too, but as the first or second one it is part of a word.
macro_rules! cased_line_end {
    () => {
        concat!(
            r"(?: [^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*",
            r"|[^\s\p{L}\p{M}\p{N}](?:[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*)?)[\r\n][\r\n/]*"
        )
    };
}

const fn joined(name: &'static str, patterns: &'static [&'static str], scanner: Scanner) -> Named {
    Named { name, aliases: &[], patterns, cuts_at_spaces: false, scanner }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Every named split.
pub static TABLE: [Named; 17] = [
    Named { name: "gpt2", aliases: &["r50k", "p50k"], patterns: &[GPT2], cuts_at_spaces: true, scanner: Scanner::Gpt2 },
    Named {
        name: "cl100k",
        aliases: &["gpt4", "llama3"],
        patterns: &[concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
            white!()
        )],
        cuts_at_spaces: true,
        scanner: Scanner::Cl100k,
    },
    Named {
        name: "o200k",
        aliases: &["gpt4o", "gpt-oss", "llama4"],
        patterns: &[concat!(
            cased_words!(concat!(contraction!(), "?")),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
            white!()
        )],
        cuts_at_spaces: true,
        scanner: Scanner::O200k,
    },
    Named {
        name: "qwen2",
        aliases: &["qwen", "qwen2.5", "qwen3"],
        patterns: &[concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", white!())],
        cuts_at_spaces: true,
        scanner: Scanner::Qwen2,
    },
    Named {
        name: "qwen3.5",
        aliases: &["qwen3.6"],
        patterns: &[concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
            white!()
        )],
        cuts_at_spaces: true,
        scanner: Scanner::Qwen35,
    },
    Named {
        name: "tekken",
        aliases: &[],
        patterns: &[concat!(cased_words!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|", white!())],
        cuts_at_spaces: true,
        scanner: Scanner::Tekken,
    },
    Named {
        name: "deepseek-v3",
        aliases: &["deepseek-r1"],
        patterns: &[
            r"\p{N}{1,3}",
            "[一-龥\u{3040}-ゟ゠-ヿ]+",
            concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
                r"| ?[\p{P}\p{S}]+[\r\n]*|",
                white!()
            ),
        ],
        cuts_at_spaces: true,
        scanner: Scanner::DeepSeekV3,
    },
    Named {
        // HF's `Digits(individual_digits=True)` is `\p{N}`.
        name: "digits-then-gpt2",
        aliases: &["starcoder", "smollm"],
        patterns: &[r"\p{N}", GPT2],
        cuts_at_spaces: true,
        scanner: Scanner::DigitsThenGpt2,
    },
    Named { name: "none", aliases: &[], patterns: &[], cuts_at_spaces: false, scanner: Scanner::Whole },
    joined("gpt2-superwords", &[between!(r" ?\p{N}+|\s+(?!\S)|[\r\n]", r"[^\s\p{L}\p{N}]")], Scanner::Gpt2),
    joined("cl100k-superwords", &[symbol_borders!(r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]")], Scanner::Cl100k),
    joined("o200k-superwords", &[borders!(r"\p{N}{1,3}", cased_line_end!(), r"[^\s\p{L}\p{M}\p{N}]")], Scanner::O200k),
    joined("qwen2-superwords", &[symbol_borders!(r"\p{N}", r"[^\s\p{L}\p{N}]")], Scanner::Qwen2),
    joined("qwen3.5-superwords", &[symbol_borders!(r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]")], Scanner::Qwen35),
    joined("tekken-superwords", &[borders!(r"\p{N}", cased_line_end!(), r"[^\s\p{L}\p{M}\p{N}]")], Scanner::Tekken),
    joined(
        "deepseek-v3-superwords",
        &[between!(
            concat!(
                r"\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}\p{C}゛゜゠・]+[\r\n]+|\s*[\r\n]+",
                "|\\s+(?![^\\s\\p{N}一-龥\u{3040}-ゟ゠-ヿ])"
            ),
            r"[^\s\p{L}\p{M}\p{N}\p{C}゛゜゠・]"
        )],
        Scanner::DeepSeekV3,
    ),
    joined(
        "digits-then-gpt2-superwords",
        &[between!(r"\p{N}|\s+(?![^\s\p{N}])|[\r\n]", r"[^\s\p{L}\p{N}]")],
        Scanner::DigitsThenGpt2,
    ),
];

/// The split of that name or alias.
pub fn by_name(name: &str) -> Option<&'static Named> {
    TABLE.iter().find(|named| named.name == name || named.aliases.contains(&name))
}

/// The split with these patterns, letter for letter; but a line end that stands in a pattern as itself is read as the
/// `\r` or `\n` that means the same, as tokenizer.json files have either.
pub fn by_patterns(patterns: &[&str]) -> Option<&'static Named> {
    let spelled = |given: &str, known: &str| given.replace('\r', r"\r").replace('\n', r"\n") == known;
    TABLE.iter().find(|named| {
        named.patterns.len() == patterns.len()
            && patterns.iter().zip(named.patterns).all(|(given, known)| spelled(given, known))
    })
}

/// The names for messages: `gpt2, cl100k, ..., none`, and not those of second stages.
pub fn names() -> String {
    TABLE.iter().map(|named| named.name).filter(|name| !is_joined(name)).collect::<Vec<_>>().join(", ")
}

fn is_joined(name: &str) -> bool {
    name.ends_with("-superwords")
}

/// What to try in place of an unknown `word`: the name or alias that it was most likely meant to be, if any is near. If
/// only the number of a model differs, all names of the family: GPT-5 is no GPT-2 typed badly.
pub fn hint(word: &str) -> Option<String> {
    let shown = |name: &str| match by_name(name) {
        Some(named) if named.name != name => format!("`{name}` ({})", named.name),
        _ => format!("`{name}`"),
    };
    let letters = |name: &str| name.split(|c: char| !c.is_alphabetic()).next().map(str::to_lowercase);
    let near = nearest(word)?;
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    if letters(near) != letters(word) || digits(near) == digits(word) || digits(word).is_empty() {
        return Some(format!("Did you mean {}?", shown(near)));
    }
    let family: Vec<_> =
        all_names().filter(|name| letters(name) == letters(word) && !is_joined(name)).map(shown).collect();
    Some(format!("Did you mean {}?", family.join(" or ")))
}

fn all_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|named| std::iter::once(&named.name).chain(named.aliases)).copied()
}

fn nearest(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let nearest = all_names().map(|name| (distance(&word, name), name)).min_by_key(|(distance, _)| *distance)?;
    // Up to a third of the letters may be wrong: `cl100k_base` is no `cl100k` typed badly, but starts like it.
    (nearest.0 * 3 <= nearest.1.len())
        .then_some(nearest.1)
        .or_else(|| TABLE.iter().map(|named| named.name).find(|name| word.starts_with(name) && *name != "none"))
}

/// Levenshtein's: how many characters to change, add or take away to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let changed = diagonal + usize::from(x != y);
            let best = changed.min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.chars().count()]
}
