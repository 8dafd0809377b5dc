//! Every split against its regex.

use super::{Input, letters};
use crate::pretoken::{Split, TABLE};
use std::sync::OnceLock;

/// One or more of each kind that a rule of a named split distinguishes; the third line is beyond ASCII: Kelvin sign and
/// long s (which case folding meets), title case, modifier, no case, mark, digit, number, blank, newline-like, symbols,
/// emoji. In the second are the letter, mark, punctuation and unassigned code point that deepseek-v3 sees among ideographs.
pub const KINDS: &str = " \n\r\tasvelLSDM1'/!\0\
    \u{30a2}\u{3099}\u{30fb}\u{3040}\
    \u{212a}\u{17f}\u{1c5}\u{2b0}\u{4e2d}\u{301}\u{663}\u{bd}\u{3000}\u{a0}\u{85}\u{2028}\u{e9}\u{c9}\u{200b}\u{2014}\u{1f600}";

/// Regexes of users: SuperBPE's, digits from the right, a possessive one, one that skips, one that matches nothing.
const OWN: [&str; 6] = [
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]{2,}[\r\n/]*| +(?!\S)",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"\S+|\s+",
    r"a+(?=\s)|1+(?!')",
    r"(?=s)|(?<=a)\s",
];

/// All named splits, the regexes of [`OWN`], and a sequence; compiled once.
pub fn splits() -> &'static [Split] {
    static SPLITS: OnceLock<Vec<Split>> = OnceLock::new();
    SPLITS.get_or_init(|| {
        let written = TABLE.iter().map(|named| vec![named.name]).chain(OWN.map(|own| vec![own]));
        let sequence = vec![r"\p{N}+", "gpt2"];
        written.chain([sequence]).map(|specs| Split::sequence(&specs).expect("a split")).collect()
    })
}

/// Compares all splits with their regexes on a text read from `data`.
pub fn pretoken(data: &[u8]) {
    let mut input = Input(data);
    let text = if input.once_in(2) { input.any_text(600) } else { read(&mut input) };
    for split in splits() {
        let pieces = pretokens(split, &text);
        let mut want = vec![];
        split.reference_for_each(&text, |piece| want.push(piece)).expect("these texts are short");
        assert_eq!(shown(&pieces), shown(&want), "{}: {text:?}", split.patterns().join(" then "));
        assert!(pieces.iter().all(|piece| !piece.is_empty()), "{text:?}");
        assert_eq!(pieces.concat(), text.as_bytes(), "the pretokens are not the text");
    }
    halves(&text);
}

/// A text of a few kinds of characters.
fn read(input: &mut Input) -> String {
    let all = letters(KINDS);
    let few: Vec<String> = (0..1 + input.below(8)).map(|_| input.pick(&all).clone()).collect();
    input.text(&few, 600, false)
}

fn pretokens<'t>(split: &Split, text: &'t str) -> Vec<&'t [u8]> {
    let mut pieces = vec![];
    split.for_each(text, |piece| pieces.push(piece)).expect("these texts are short");
    pieces
}

fn shown(pieces: &[&[u8]]) -> Vec<String> {
    pieces.iter().map(|piece| String::from_utf8_lossy(piece).into_owned()).collect()
}

/// Where a split has the property `cuts_at_spaces`, the text may be cut at its first place of that kind.
fn halves(text: &str) {
    let cuts = |pair: &[u8]| match pair[1] {
        b' ' => pair[0].is_ascii_graphic(),
        b'\n' => pair[0].is_ascii_alphanumeric(),
        _ => false,
    };
    let Some(at) = text.as_bytes().windows(2).position(cuts) else { return };
    let (left, right) = text.split_at(at + 1);
    for (named, split) in TABLE.iter().zip(splits()).filter(|(named, _)| named.cuts_at_spaces) {
        let parted = [pretokens(split, left), pretokens(split, right)].concat();
        assert_eq!(shown(&parted), shown(&pretokens(split, text)), "{}: {left:?} + {right:?}", named.name);
    }
}
