//! JSON lines -> one text field.
//!
//! In: whole lines. Out: the field's text of every line, and the byte at which each line starts. The whole line
//! must be valid JSON and UTF-8, not only the field. Lines of nothing but white space are passed over, which
//! also takes care of `\r\n`. Where a key occurs twice the last one counts, as in Python's `json`. As there, a number
//! beyond 64 bits (`1e400`) is infinite, and a key may have a lone surrogate: no field has such a name.
//!
//! Text is unescaped straight into the output buffer, and no line allocates. `json_line` reads the usual lines;
//! `serde_json` the others, and it words the errors.

pub use super::json_line::REGISTER;
use super::json_line::take_string;
use super::{Taken, integers, number_text, utf8};
use serde_core::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// What counts as text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Strings,
    /// Also numbers and booleans, as JSON writes them.
    Scalars,
    /// Also arrays of integers: the digits of each, with a space after them.
    Integers,
}

/// What stood where the text was expected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Text,
    Other(&'static str),
    /// The line is not an object.
    Outside(&'static str),
}

/// The documents of a buffer of lines, and how many line ends it has.
#[derive(Debug, Default)]
pub struct Lines {
    /// One document per line, with the byte at which its line starts as its origin.
    pub taken: Taken,
    /// Line ends, so that the caller can go on counting.
    pub newlines: u64,
    /// The low half of the xxh3-128 of each document's group, if a field for it was requested.
    pub keys: Vec<u64>,
    /// What was hashed, of the first [`MOST_NAMES`] different ones.
    pub names: HashMap<u64, String>,
}

/// Groups that have a name. Beyond these, groups have a hash only.
const MOST_NAMES: usize = 1024;

/// Takes `field` out of every line. A dot goes into nested objects: `meta.text` is `{"meta": {"text": ...}}`,
/// and also a key that is spelled with the dot. `group` is a second field, text or a number, of which a hash is kept:
/// it says which documents belong together. With `integers` the field may also be an array of them. The text is
/// appended to `text`.
pub fn extract(lines: &[u8], field: &str, group: Option<&str>, integers: bool, text: Vec<u8>) -> Lines {
    let wanted = if integers { Wanted::Integers } else { Wanted::Strings };
    let mut out = Lines { taken: Taken { before: text.len(), data: text, ..Taken::default() }, ..Lines::default() };
    out.taken.data.reserve(lines.len() + REGISTER);
    // One check for the whole buffer runs at memory speed; only a bad buffer is checked line by line.
    let whole = simdutf8::basic::from_utf8(lines).ok();
    let mut start = 0;
    while start < lines.len() {
        let cut = memchr::memchr(b'\n', &lines[start..]);
        let end = cut.map_or(lines.len(), |at| start + at);
        let bytes = &lines[start..end];
        if !bytes.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            let line = match whole {
                // Never None: a line end is no part of another character.
                Some(text) => text.get(start..end),
                None => simdutf8::basic::from_utf8(bytes).ok(),
            };
            match line {
                Some(line) => {
                    extract_line(line, field, wanted, start, out.newlines, &mut out.taken);
                    if let Some(group) = group.filter(|_| out.taken.ends.len() > out.keys.len()) {
                        keep_key(line, group, &mut out);
                    }
                }
                None => out.taken.problems.push(out.newlines, || {
                    let at = utf8::first_invalid(bytes).unwrap_or(0);
                    format!("{} of the line", utf8::describe(bytes, at, 0))
                }),
            }
        }
        out.newlines += u64::from(cut.is_some());
        start = end + 1;
    }
    out
}

/// Appends the field of one line to `taken`, or says why there is none.
fn extract_line(line: &str, field: &str, wanted: Wanted, start: usize, number: u64, taken: &mut Taken) {
    if wanted == Wanted::Strings && take_string(line, field, &mut taken.data) {
        taken.close(start as i64);
        return;
    }
    let mark = taken.data.len();
    let (parsed, found) = take_field(line, field, wanted, &mut taken.data);
    if parsed.is_ok() && found == Found::Text {
        taken.close(start as i64);
        return;
    }
    taken.data.truncate(mark);
    taken.problems.push(number, || match (parsed, found) {
        (Err(error), _) => match (error.column(), said(&error)) {
            (at, what) if wanted == Wanted::Integers && no_integer(&what) => {
                format!("the field {field:?} at column {at}: {what}, expected an array of integers of 64 bits")
            }
            (at, what) => format!("broken JSON at column {at}: {what}"),
        },
        (Ok(()), Found::Outside(kind)) => format!("found {kind}, expected a JSON object with the field {field:?}"),
        (Ok(()), Found::Other(kind)) => {
            let expected = if wanted == Wanted::Integers { "an array of integers" } else { "a string" };
            format!("the field {field:?} is {kind}, expected {expected}")
        }
        (Ok(()), _) => format!("no field {field:?} (option field names the one that holds the text)"),
    });
}

/// Whether `serde_json` says that a value is valid JSON, but no integer of 64 bits.
fn no_integer(said: &str) -> bool {
    ["invalid type: ", "invalid value: ", "number out of range"].iter().any(|start| said.starts_with(start))
}

/// The message of an error without its place.
fn said(error: &serde_json::Error) -> String {
    let mut said = error.to_string();
    said.truncate(said.rfind(" at line ").unwrap_or(said.len()));
    said
}

/// Appends what stands in the field to `text`.
fn take_field(line: &str, path: &str, wanted: Wanted, text: &mut Vec<u8>) -> (serde_json::Result<()>, Found) {
    let mark = text.len();
    let mut take = |all| {
        let mut found = Found::Nothing;
        let mut json = serde_json::Deserializer::from_str(line);
        let object = Object { path, outermost: true, all, wanted, mark, text: &mut *text, found: &mut found };
        (object.deserialize(&mut json).and_then(|()| json.end()), found)
    };
    match take(None) {
        (Err(_), _) => take(Some(line)),
        taken => taken,
    }
}

/// Visits a value. If `all`, the line, was refused by the plain way, the value is found first and then read:
/// `serde_json` passes over numbers beyond 64 bits and lone surrogates, but reads neither.
fn visit<'de, D: Deserializer<'de>, V: Visitor<'de>>(
    from: D,
    all: Option<&str>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Some(line) = all else {
        return from.deserialize_any(visitor);
    };
    let raw = <&RawValue>::deserialize(from)?.get();
    match raw.parse::<f64>() {
        Ok(value) if value.is_infinite() && !raw.ends_with(char::is_alphabetic) => visitor.visit_f64(value),
        _ => serde_json::Deserializer::from_str(raw).deserialize_any(visitor).map_err(|error| {
            let column = raw.as_ptr() as usize - line.as_ptr() as usize + error.column();
            D::Error::custom(format!("{} at line 1 column {column}", said(&error)))
        }),
    }
}

/// The field as `serde_json` reads it, to compare with.
#[cfg(test)]
pub fn take_by_serde(line: &str, path: &str, text: &mut Vec<u8>) -> bool {
    let (parsed, found) = take_field(line, path, Wanted::Strings, text);
    parsed.is_ok() && found == Found::Text
}

/// Hashes the group of the document that was taken last; without a group the document is no use and goes.
fn keep_key(line: &str, group: &str, out: &mut Lines) {
    let mut key = Vec::new();
    let (_, found) = take_field(line, group, Wanted::Scalars, &mut key);
    if found == Found::Text {
        let hash = xxh3_128(&key) as u64;
        out.keys.push(hash);
        if out.names.len() < MOST_NAMES {
            out.names.entry(hash).or_insert_with(|| String::from_utf8_lossy(&key).into_owned());
        }
        return;
    }
    let taken = &mut out.taken;
    taken.ends.pop();
    taken.origins.pop();
    taken.data.truncate(taken.before + taken.ends.last().map_or(0, |&end| end as usize));
    taken.problems.push(out.newlines, || match found {
        Found::Other(kind) => format!("the field {group:?} is {kind}, expected text or a number to group by"),
        _ => format!("no field {group:?} to group by"),
    });
}

/// An object in which to look for `path`.
struct Object<'a> {
    path: &'a str,
    outermost: bool,
    /// The line, if it has to be read in the way of `visit`.
    all: Option<&'a str>,
    wanted: Wanted,
    /// Where this line's text starts in `text`; what an earlier key of the same name left there goes.
    mark: usize,
    text: &'a mut Vec<u8>,
    found: &'a mut Found,
}

impl Object<'_> {
    fn outside(self, kind: &'static str, _: Option<String>) {
        if self.outermost {
            *self.found = Found::Outside(kind);
        }
    }
}

/// What a key of an object means for the path.
enum Key<'a> {
    Field,
    Into(&'a str),
    Other,
}

/// Compares a key with the path without copying it. If `raw`, a key with a lone surrogate is just another one.
struct KeySeed<'a> {
    path: &'a str,
    raw: bool,
}

impl<'de, 'a> DeserializeSeed<'de> for KeySeed<'a> {
    type Value = Key<'a>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Key<'a>, D::Error> {
        if !self.raw {
            return from.deserialize_str(self);
        }
        let key = <&RawValue>::deserialize(from)?.get();
        Ok(serde_json::Deserializer::from_str(key).deserialize_str(self).unwrap_or(Key::Other))
    }
}

impl<'a> Visitor<'_> for KeySeed<'a> {
    type Value = Key<'a>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> Result<Key<'a>, E> {
        Ok(match self.path.strip_prefix(key) {
            Some("") => Key::Field,
            Some(rest) => rest.strip_prefix('.').map_or(Key::Other, Key::Into),
            None => Key::Other,
        })
    }
}

/// The visits that only differ in what they call the value.
macro_rules! other_values {
    ($report:ident) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("JSON")
        }
        fn visit_bool<E>(self, value: bool) -> Result<(), E> {
            Ok(self.$report("a boolean", Some(value.to_string())))
        }
        fn visit_i64<E>(self, value: i64) -> Result<(), E> {
            Ok(self.$report("a number", Some(value.to_string())))
        }
        fn visit_u64<E>(self, value: u64) -> Result<(), E> {
            Ok(self.$report("a number", Some(value.to_string())))
        }
        fn visit_f64<E>(self, value: f64) -> Result<(), E> {
            Ok(self.$report("a number", Some(number_text(value))))
        }
        fn visit_unit<E>(self) -> Result<(), E> {
            Ok(self.$report("null", None))
        }
    };
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        visit(from, self.all, self)
    }
}

#[allow(clippy::unit_arg)]
impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();
    other_values!(outside);
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(self.outside("a string", None))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.outside("an array", None))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Object { path, all, wanted, mark, text, found, .. } = self;
        // How much of the path was left inside the object that gave what was found, if one did.
        let mut inside = None;
        while let Some(key) = map.next_key_seed(KeySeed { path, raw: all.is_some() })? {
            match key {
                Key::Field => {
                    map.next_value_seed(Field { all, wanted, mark, text: &mut *text, found: &mut *found })?;
                    inside = None;
                }
                Key::Into(path) => {
                    if inside == Some(path.len()) {
                        // The same key again: what the earlier object held does not count.
                        *found = Found::Nothing;
                    }
                    let before = std::mem::replace(found, Found::Nothing);
                    map.next_value_seed(Object {
                        path,
                        outermost: false,
                        all,
                        wanted,
                        mark,
                        text: &mut *text,
                        found: &mut *found,
                    })?;
                    match *found == Found::Nothing {
                        true => *found = before,
                        false => inside = Some(path.len()),
                    }
                }
                Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// The value that should be the text.
struct Field<'a> {
    all: Option<&'a str>,
    wanted: Wanted,
    mark: usize,
    text: &'a mut Vec<u8>,
    found: &'a mut Found,
}

impl Field<'_> {
    fn other(self, kind: &'static str, scalar: Option<String>) {
        *self.found = match scalar.filter(|_| self.wanted == Wanted::Scalars) {
            Some(text) => {
                self.text.truncate(self.mark);
                self.text.extend_from_slice(text.as_bytes());
                Found::Text
            }
            None => Found::Other(kind),
        };
    }
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        visit(from, self.all, self)
    }
}

#[allow(clippy::unit_arg)]
impl<'de> Visitor<'de> for Field<'_> {
    type Value = ();
    other_values!(other);
    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.text.truncate(self.mark);
        self.text.extend_from_slice(value.as_bytes());
        Ok(*self.found = Found::Text)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.wanted != Wanted::Integers {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(self.other("an array", None));
        }
        self.text.truncate(self.mark);
        while let Some(value) = seq.next_element()? {
            integers::push(value, self.text);
        }
        Ok(*self.found = Found::Text)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.other("an object", None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::slices;

    fn texts(lines: &[u8], field: &str) -> (Vec<String>, Vec<(u64, String)>) {
        let taken = extract(lines, field, None, false, Vec::new()).taken;
        let documents = slices(&taken.data, &taken.ends).map(|text| String::from_utf8_lossy(text).into_owned());
        (
            documents.collect(),
            taken.problems.listed.into_iter().map(|problem| (problem.index, problem.reason)).collect(),
        )
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        assert_eq!(texts(br#"{"text":"first","text":"second"}"#, "text").0, ["second"]);
        assert_eq!(texts(br#"{"text":"first","text":null}"#, "text").1.len(), 1);
        assert_eq!(texts(br#"{"m":{"t":"first"},"m":{"t":"second"}}"#, "m.t").0, ["second"]);
        assert_eq!(texts(br#"{"m.t":"flat","m":{}}"#, "m.t").0, ["flat"]);
        for empty in ["{}", "7", "null", r#"{"t":null}"#] {
            let line = format!(r#"{{"m":{{"t":"stale"}},"m":{empty}}}"#);
            assert_eq!(texts(line.as_bytes(), "m.t").0, [""; 0], "{line}");
        }
    }

    #[test]
    fn a_dot_goes_into_objects_or_is_part_of_the_key() {
        let lines = b"{\"meta\":{\"text\":\"in\"}}\n{\"meta.text\":\"flat\"}\n{\"meta\":{\"a\":{\"meta\":\"no\"}}}";
        let (documents, problems) = texts(lines, "meta.text");
        assert_eq!(documents, ["in", "flat"]);
        assert_eq!(problems, [(2, "no field \"meta.text\" (option field names the one that holds the text)".into())]);
    }

    #[test]
    fn a_number_beyond_64_bits_is_valid_json_and_no_string() {
        let number = "the field \"text\" is a number, expected a string";
        for (line, reason) in [
            (r#"{"text":1e400}"#, number),
            (r#"{"text":"x","text":-1e400}"#, number),
            (r#" 1e400 "#, "found a number, expected a JSON object with the field \"text\""),
            (r#"{"text":1e400,"text":"\ud800"}"#, "broken JSON at column 29: unexpected end of hex escape"),
            (r#"{"text":1e400,"a":1e}"#, "broken JSON at column 21: invalid number"),
            (r#"{"text":1e400} x"#, "broken JSON at column 16: trailing characters"),
            (r#"{"text":infinity}"#, "broken JSON at column 9: expected value"),
        ] {
            let (documents, problems) = texts(line.as_bytes(), "text");
            assert_eq!((documents.len(), problems), (0, vec![(0, reason.to_string())]), "{line}");
        }
        for line in [
            r#"{"text":1e400,"text":"x"}"#,
            r#"{"text":1e400,"te\u0078t":"x"}"#,
            r#"{"text":"x","a":1e400,"b":[-1e999,{"c":1e999}]}"#,
            r#"{"te\u0078t":"x","a":1e400}"#,
        ] {
            assert_eq!(texts(line.as_bytes(), "text").0, ["x"], "{line}");
        }
        let nested = br#"{"m":1e400,"m":{"t":1e400,"z":1e400,"t":"x"}}"#;
        assert_eq!(texts(nested, "m.t").0, ["x"]);
    }

    #[test]
    fn a_key_with_a_lone_surrogate_is_another_key() {
        assert_eq!(texts(br#"{"te\ud800xt":1,"text":"x"}"#, "text").0, ["x"]);
        assert_eq!(texts(br#"{"\udc00":1e400,"m":{"\ud800":"","t":"x"}}"#, "m.t").0, ["x"]);
        let reasons = texts(b"{\"a\x01\":1,\"text\":\"x\"}\n{\"\\ud800\":1,\"text\":\"\\udfff\"}", "text").1;
        assert_eq!(
            reasons[0].1,
            "broken JSON at column 3: control character (\\u0000-\\u001F) found while parsing a string"
        );
        assert_eq!(reasons[1].1, "broken JSON at column 26: lone leading surrogate in hex escape");
    }

    #[test]
    fn arrays_of_integers_are_their_digits_where_they_are_wanted() {
        let lines = [
            r#"{"t":[1,-2]}"#,
            r#"{"t":[]}"#,
            r#"{"t":"3"}"#,
            r#"{"t":[1.5]}"#,
            r#"{"t":7}"#,
            r#"{"t":[9223372036854775808]}"#,
            r#"{"t":[1e400]}"#,
        ];
        let taken = extract(lines.join("\n").as_bytes(), "t", None, true, Vec::new()).taken;
        assert_eq!((taken.data.as_slice(), taken.ends, taken.empty), (b"1 -2 3".as_slice(), vec![5, 6], 1));
        let wanted = "expected an array of integers";
        let reasons: Vec<String> = taken.problems.listed.into_iter().map(|problem| problem.reason).collect();
        let of_64_bits = |what: &str| format!("the field \"t\" at column {what}, {wanted} of 64 bits");
        assert_eq!(
            reasons,
            [
                of_64_bits("9: invalid type: floating point `1.5`, expected i64"),
                format!("the field \"t\" is a number, {wanted}"),
                of_64_bits("25: invalid value: integer `9223372036854775808`, expected i64"),
                of_64_bits("11: number out of range"),
            ]
        );
    }

    #[test]
    fn numbers_of_one_value_are_one_group_however_they_are_written() {
        let keys = |numbers: &[&str]| {
            let lines: Vec<String> = numbers.iter().map(|n| format!("{{\"text\":\"a\",\"g\":{n}}}")).collect();
            let mut keys = extract(lines.join("\n").as_bytes(), "text", Some("g"), false, Vec::new()).keys;
            keys.dedup();
            keys
        };
        assert_eq!(keys(&["12345678901", "12345678901.0", "1.2345678901e10", "\"12345678901\""]).len(), 1);
        assert_eq!(keys(&["0", "0.0", "-0.0", "0e5"]).len(), 1);
        assert_eq!(keys(&["1e-7", "0.0000001"]).len(), 1);
        assert_eq!(keys(&["18446744073709551615", "18446744073709551616", "1.8446744073709551616e19"]).len(), 2);
        assert_eq!(keys(&["-9223372036854775808", "-9223372036854775808.0"]).len(), 1);
        assert_eq!(keys(&["1e400", "2e500", "\"inf\""]), crate::sources::number_keys(&[f64::INFINITY]));
    }

    #[test]
    fn a_group_is_hashed_and_a_document_without_one_is_a_problem() {
        let lines = b"{\"text\":\"a\",\"repo\":7}\n{\"text\":\"\",\"repo\":1}\n{\"text\":\"b\"}\n{\"repo\":\"7\",\"text\":\"c\"}";
        let out = extract(lines, "text", Some("repo"), false, b"before".to_vec());
        assert_eq!(out.taken.data, b"beforeac");
        assert_eq!((out.taken.before, out.taken.ends.as_slice()), (6, [1, 2].as_slice()));
        assert_eq!(out.keys, [xxh3_128(b"7") as u64; 2]);
        assert_eq!((out.taken.empty, out.taken.problems.count), (1, 1));
        assert_eq!(out.taken.problems.listed[0].reason, "no field \"repo\" to group by");
    }
}
