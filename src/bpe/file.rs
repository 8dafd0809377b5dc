//! The large part of a tokenizer.json with byte-level BPE: its vocabulary and merges, read and written.
//!
//! The file writes each byte as one character ([`character`]). Python reads and writes the rest of the file.

use super::pair::{PairSet, pair};
use super::{byte_order, is_shown};
use crate::error::{Error, Result};
use hashbrown::HashTable;
use serde_core::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

/// A vocabulary as it was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// The bytes of each id; of a special token the UTF-8 of its text, unless ordinary bytes share its id.
    pub tokens: Vec<Vec<u8>>,
    /// Pairs of ids, best first.
    pub merges: Vec<[u32; 2]>,
    /// Every id that ordinary text can reach, in the order made: bytes first, then merges.
    pub ranked: Vec<u32>,
}

/// A file in three parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The file with an empty vocabulary and no merges.
    pub settings: String,
    /// The value of `vocab` in the model; empty if it is missing or null.
    pub vocab: &'a str,
    /// The same of `merges`.
    pub merges: &'a str,
}

/// The parts of a tokenizer.json; None if it is not a JSON object with a model.
pub fn parts(content: &str) -> Option<Parts<'_>> {
    let content = content.trim_start_matches('\u{feff}'); // a byte order mark, which Python's JSON reader skips too
    let file: HashMap<String, &RawValue> = serde_json::from_str(content).ok()?;
    let model: HashMap<String, &RawValue> = serde_json::from_str(file.get("model")?.get()).ok()?;
    let value = |name| model.get(name).map(|value| value.get()).filter(|&value| value != "null").unwrap_or("");
    let (vocab, merges) = (value("vocab"), value("merges"));
    let mut large = [(vocab, "{}"), (merges, "[]")].map(|(value, empty): (&str, _)| {
        let start = if value.is_empty() { 0 } else { value.as_ptr() as usize - content.as_ptr() as usize };
        (start, start + value.len(), empty)
    });
    large.sort_unstable();
    let (mut settings, mut at) = (String::new(), 0);
    for (start, end, empty) in large.into_iter().filter(|(start, end, _)| start < end) {
        settings.push_str(&content[at..start]);
        settings.push_str(empty);
        at = end;
    }
    settings.push_str(&content[at..]);
    Some(Parts { settings, vocab, merges })
}

/// A JSON value, or an empty one where there is none; None if it is of another type.
fn parsed<'a, T: Deserialize<'a> + Default>(value: &'a str) -> Option<T> {
    if value.is_empty() { Some(T::default()) } else { serde_json::from_str(value).ok() }
}

/// A JSON string, copied only where it has escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(given: D) -> std::result::Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Cow<'de, str>;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> std::result::Result<Cow<'de, str>, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Cow<'de, str>, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        given.deserialize_str(Strings).map(Text)
    }
}

/// The tokens of a file and their ids, in its order.
#[derive(Default)]
struct Entries<'a>(Vec<(Text<'a>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(given: D) -> std::result::Result<Self, D::Error> {
        struct Objects;
        impl<'de> Visitor<'de> for Objects {
            type Value = Entries<'de>;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("an object of ids")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Entries<'de>, M::Error> {
                let mut entries = vec![];
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        given.deserialize_map(Objects)
    }
}

/// Finds the id of a token.
struct Index<'a> {
    entries: &'a [(Text<'a>, u32)],
    table: HashTable<usize>,
}

impl<'a> Index<'a> {
    /// None if a token has two entries.
    fn new(entries: &'a [(Text<'a>, u32)]) -> Option<Index<'a>> {
        let mut index = Index { entries, table: HashTable::with_capacity(entries.len()) };
        for (at, (Text(text), _)) in entries.iter().enumerate() {
            if index.get(text).is_some() {
                return None;
            }
            let hash = |&at: &usize| xxh3_64(entries[at].0.0.as_bytes());
            index.table.insert_unique(xxh3_64(text.as_bytes()), at, hash);
        }
        Some(index)
    }

    fn get(&self, text: &str) -> Option<u32> {
        let found = self.table.find(xxh3_64(text.as_bytes()), |&at| self.entries[at].0.0 == text);
        found.map(|&at| self.entries[at].1)
    }
}

/// Merges in either of the two forms that a file may have: pairs, or both halves with a space between them.
fn pairs(value: &str) -> Option<Vec<[Text<'_>; 2]>> {
    parsed(value).or_else(|| {
        let lines: Vec<Text> = parsed(value)?;
        let halves = |Text(line): &Text| {
            let (left, right) = line.split_once(' ')?;
            (!right.contains(' ')).then(|| [left, right].map(|half| Text(Cow::Owned(half.to_owned()))))
        };
        lines.iter().map(halves).collect()
    })
}

/// The vocabulary of these parts of a file; None if it is not that of plain byte-level BPE: a token twice, or ids that
/// are not 0 to n - 1, each once; a byte without a token, unless `partly`; the same merge twice; a token that no merge
/// makes; a special token that HF `tokenizers` gives another id than the file does. A merge of a token that does not
/// exist, or into one, is an error.
///
/// `special` are the special tokens in the order of the file. HF numbers those that the vocabulary lacks in this order,
/// from the number of its entries on, whatever ids the file gives them.
pub fn vocabulary(vocab: &str, merges: &str, special: &[(String, u32)], partly: bool) -> Result<Option<Vocabulary>> {
    let (Some(Entries(vocab)), Some(merges)) = (parsed(vocab), pairs(merges)) else { return Ok(None) };
    let Some(index) = Index::new(&vocab) else { return Ok(None) };
    let apart: Vec<u32> = special.iter().filter(|(text, _)| index.get(text).is_none()).map(|&(_, id)| id).collect();
    if !apart.iter().map(|&id| id as usize).eq(vocab.len()..vocab.len() + apart.len()) {
        return Ok(None);
    }
    let mut spelled: Vec<Option<&str>> = vec![None; vocab.len() + apart.len()];
    for (text, id) in
        special.iter().map(|(text, id)| (&**text, id)).chain(vocab.iter().map(|(text, id)| (&*text.0, id)))
    {
        match spelled.get_mut(*id as usize) {
            Some(place @ None) => *place = Some(text),
            Some(Some(known)) if *known == text => {} // special, and in the vocabulary too
            _ => return Ok(None),
        }
    }

    let alphabet: Vec<u32> =
        byte_order().filter_map(|byte| index.get(character(byte).encode_utf8(&mut [0; 2]))).collect();
    if alphabet.len() < 256 && !partly {
        return Ok(None);
    }
    let mut ranked = vec![];
    let mut reachable = vec![false; spelled.len()];
    let mut reach = |id: u32| {
        if !std::mem::replace(&mut reachable[id as usize], true) {
            ranked.push(id);
        }
    };
    alphabet.into_iter().for_each(&mut reach);

    let known = |text: &str| {
        let unknown = || format!("a merge names or makes '{text}', which is not in the vocabulary.");
        index.get(text).ok_or_else(|| Error::Tokenizer(unknown()))
    };
    let (mut numbers, mut seen) = (Vec::with_capacity(merges.len()), PairSet::default());
    let (mut text, mut next) = (String::new(), 0);
    for [Text(left), Text(right)] in &merges {
        let (first, second) = (known(left)?, known(right)?);
        text.clear();
        text.push_str(left);
        text.push_str(right);
        // Mostly the id after that of the merge before.
        let made = if spelled.get(next) == Some(&Some(&*text)) { next as u32 } else { known(&text)? };
        next = made as usize + 1;
        reach(made);
        numbers.push([first, second]);
        if !seen.insert(pair(first, second)) {
            return Ok(None);
        }
    }
    let names: HashSet<&str> = special.iter().map(|(text, _)| &**text).collect();
    if vocab.iter().any(|(text, id)| !reachable[*id as usize] && !names.contains(&*text.0)) {
        return Ok(None);
    }
    let bytes = bytes_of_characters();
    let tokens = spelled.iter().zip(&reachable).map(|(text, reachable)| {
        let text = text.expect("every id has a token");
        let meant = reachable.then(|| text.chars().map(|one| bytes.get(one as usize).copied().flatten()).collect());
        meant.flatten().unwrap_or_else(|| text.as_bytes().to_vec())
    });
    Ok(Some(Vocabulary { tokens: tokens.collect(), merges: numbers, ranked }))
}

/// `vocab` and `merges` of a tokenizer.json, one entry a line. `special` has the texts of special tokens by id.
pub fn body(tokens: &[&[u8]], special: &HashMap<u32, String>, merges: &[[u32; 2]]) -> String {
    // The tokens as JSON strings, one after another.
    let (mut names, mut ends) = (String::new(), vec![0]);
    let quoted: Vec<String> = (0..=255).map(|byte| quoted(character(byte).encode_utf8(&mut [0; 2]))).collect();
    for (id, token) in (0..).zip(tokens) {
        if let Some(text) = special.get(&id) {
            names.push_str(&self::quoted(text));
        } else {
            names.push('"');
            for &byte in *token {
                let name = &quoted[usize::from(byte)];
                names.push_str(&name[1..name.len() - 1]);
            }
            names.push('"');
        }
        ends.push(names.len());
    }
    let name = |id: u32| &names[ends[id as usize]..ends[id as usize + 1]];
    let mut out = String::with_capacity(3 * names.len() + 32 * tokens.len());
    out.push_str("\"vocab\": {\n");
    for id in 0..tokens.len() as u32 {
        out.push_str(if id > 0 { ",\n" } else { "" });
        out.push_str(name(id));
        out.push(':');
        out.push_str(&id.to_string());
    }
    out.push_str("\n},\n\"merges\": [\n");
    for (number, &[left, right]) in merges.iter().enumerate() {
        out.push_str(if number > 0 { ",\n[" } else { "[" });
        out.push_str(name(left));
        out.push(',');
        out.push_str(name(right));
        out.push(']');
    }
    out.push_str("\n]");
    out
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The character that a file has for a byte, as GPT-2 chose it: itself where it is printable, else the next one from
/// U+0100 on.
fn character(byte: u8) -> char {
    if is_shown(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&one| !is_shown(one)).count() as u32;
    char::from_u32(0x100 + before).expect("below the surrogates")
}

/// The byte of each character that stands for one.
fn bytes_of_characters() -> [Option<u8>; 0x200] {
    let mut bytes = [None; 0x200];
    (0..=255).for_each(|byte| bytes[character(byte) as usize] = Some(byte));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(vocab: &str, merges: &str) -> String {
        format!(r#"{{"a": [1], "model": {{"merges": {merges}, "type": "BPE", "vocab": {vocab}}}, "b": null}}"#)
    }

    fn of(vocab: &str, merges: &str) -> Result<Option<Vocabulary>> {
        let content = file(vocab, merges);
        let parts = parts(&content).expect("a file");
        vocabulary(parts.vocab, parts.merges, &[("<s>".to_owned(), 0)], true)
    }

    #[test]
    fn settings_are_the_file_without_its_large_part() {
        let settings = |content: &str| parts(content).map(|parts| parts.settings);
        let small = r#"{"a": [1], "model": {"merges": [], "type": "BPE", "vocab": {}}, "b": null}"#;
        assert_eq!(settings(&file(r#"{"a": 1}"#, r#"["a a", "a b"]"#)).as_deref(), Some(small));
        assert_eq!(settings(r#"{"model": {"merges": null}}"#).as_deref(), Some(r#"{"model": {"merges": null}}"#));
        assert_eq!(settings("\u{feff}{\"model\": {}}").as_deref(), Some(r#"{"model": {}}"#));
        assert_eq!((settings("[]"), settings("{}"), settings(r#"{"model": "#)), (None, None, None));
    }

    #[test]
    fn ids_merges_and_bytes_are_read() {
        let found = of(r#"{"<s>": 0, "a": 1, "Ġ": 2, "Ġa": 3}"#, r#"[["Ġ", "a"]]"#).expect("sound").expect("plain");
        let tokens = ["<s>", "a", " ", " a"].map(|text| text.as_bytes().to_vec()).to_vec();
        assert_eq!(found, Vocabulary { tokens, merges: vec![[2, 1]], ranked: vec![1, 2, 3] });
        assert_eq!(of(r#"{"<s>": 0, "a": 1, "Ġ": 2, "Ġa": 3}"#, r#"["Ġ a"]"#), Ok(Some(found)));
    }

    #[test]
    fn what_is_not_plain_is_not_read() {
        for (vocab, merges) in [
            (r#"{"<s>": 0, "a": 1, "b": 3}"#, "[]"),                 // a gap
            (r#"{"<s>": 0, "a": 1, "b": 1}"#, "[]"),                 // an id twice
            (r#"{"<s>": 0, "a": 1, "b": 2, "ab": 3}"#, "null"),      // no merge makes it
            (r#"{"<s>": 0, "a": 1, "aa": 2}"#, r#"["a a", "a a"]"#), // a merge twice
            (r#"{"<s>": 0, "a": 1, "aa": 2}"#, r#"["a a a"]"#),      // no pair
            (r#"{"a": 1, "b": 2}"#, "[]"),                           // <s> is 0 in the file, and 2 in HF
            (r#"{"a": -1}"#, "[]"),
            ("[]", "[]"),
        ] {
            assert_eq!(of(vocab, merges), Ok(None), "{vocab} {merges}");
        }
        assert_eq!(vocabulary(r#"{"a": 0}"#, "", &[], false), Ok(None)); // bytes without tokens
        assert!(of(r#"{"<s>": 0, "a": 1}"#, r#"["a b"]"#).is_err());
        let numbered = |ids: [u32; 2]| {
            let special = [("<s>".to_owned(), ids[0]), ("<t>".to_owned(), ids[1])];
            vocabulary(r#"{"a": 0, "b": 1}"#, "", &special, true).map(|found| found.is_some())
        };
        assert_eq!([[2, 3], [3, 2], [2, 4]].map(numbered), [Ok(true), Ok(false), Ok(false)]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let tokens: Vec<Vec<u8>> = [b"<s>\n".to_vec()].into_iter().chain(byte_order().map(|byte| vec![byte])).collect();
        let special = HashMap::from([(0, "<s>\n".to_owned())]);
        let slices: Vec<&[u8]> = tokens.iter().map(|token| &token[..]).chain([&b"! "[..]]).collect();
        let content = format!(r#"{{"model": {{{}}}}}"#, body(&slices, &special, &[[1, 221]]));
        let parts = parts(&content).expect("a file");
        let special = [("<s>\n".to_owned(), 0)];
        let read = vocabulary(parts.vocab, parts.merges, &special, false).expect("sound").expect("plain");
        assert_eq!(slices[221], b" ");
        assert_eq!(
            (read.tokens.iter().map(|token| &token[..]).collect::<Vec<_>>(), read.merges),
            (slices, vec![[1, 221]])
        );
        assert_eq!(read.ranked, (1..258).collect::<Vec<_>>());
    }
}
