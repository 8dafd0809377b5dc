//! A fast path for the usual JSON line: an object in which the text is a string under a key without escapes.
//!
//! All other lines, and broken ones, fall back to `serde_json` (see `jsonl.rs`), which also writes the error messages.
//! Strings are unescaped straight into the output buffer, up to 32 bytes at a time.

use serde_core::de::IgnoredAny;

/// Spare capacity of the output buffer: whole registers are stored, also where less is used.
pub const REGISTER: usize = 32;

/// Appends the string under the key `path` and returns true; false, with nothing appended, if the line is unusual or
/// not valid JSON. Where the key occurs twice the last one counts.
pub fn take_string(line: &str, path: &str, text: &mut Vec<u8>) -> bool {
    let mark = text.len();
    let taken = read_object(line, path, mark, text).is_some();
    if !taken {
        text.truncate(mark);
    }
    taken
}

fn read_object(line: &str, path: &str, mark: usize, text: &mut Vec<u8>) -> Option<()> {
    let bytes = line.as_bytes();
    let mut at = after(bytes, white(bytes, 0), b'{')?;
    let mut found = false;
    loop {
        let start = after(bytes, white(bytes, at), b'"')?;
        let end = start + bytes[start..].iter().position(|&byte| stops(byte))?;
        let key = line.get(start..end)?;
        at = white(bytes, after(bytes, white(bytes, after(bytes, end, b'"')?), b':')?);
        if key == path {
            text.truncate(mark);
            at = unescape(bytes, after(bytes, at, b'"')?, text)?;
            found = true;
        } else if path.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')) {
            return None;
        } else if bytes.get(at) == Some(&b'"') {
            at = skip(bytes, at + 1)?;
        } else {
            let mut values = serde_json::Deserializer::from_str(line.get(at..)?).into_iter::<IgnoredAny>();
            values.next()?.ok()?;
            at += values.byte_offset();
        }
        at = white(bytes, at);
        match bytes.get(at)? {
            b',' => at += 1,
            b'}' => return (found && white(bytes, at + 1) == bytes.len()).then_some(()),
            _ => return None,
        }
    }
}

fn white(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

fn after(bytes: &[u8], at: usize, wanted: u8) -> Option<usize> {
    (*bytes.get(at)? == wanted).then_some(at + 1)
}

/// Whether a byte ends a run of plain characters in a string: a quote, a backslash, or an invalid control character.
fn stops(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..=0x1F)
}

/// The offset after the string that starts at `at`. Escapes are only validated as far as `serde_json` does for an
/// ignored value: lone surrogates pass.
fn skip(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += bytes[at..].iter().position(|&byte| stops(byte))?;
        at = match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => return Some(at + 1),
            (b'\\', Some(&byte)) if ESCAPES[usize::from(byte)] != 0 => at + 2,
            (b'\\', Some(b'u')) => code_unit(bytes, at).map(|_| at + 6)?,
            _ => return None,
        };
    }
}

/// The code unit of an escape of six bytes at `at`: backslash, `u`, four hexadecimal digits.
fn code_unit(bytes: &[u8], at: usize) -> Option<u32> {
    let escape = bytes.get(at..at + 6).filter(|escape| escape.starts_with(b"\\u"))?;
    escape[2..].iter().try_fold(0, |value, &byte| Some(value << 4 | char::from(byte).to_digit(16)?))
}

/// Appends the string that starts at `at`; returns the offset after it.
fn unescape(bytes: &[u8], mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    // An escape is never shorter than what it stands for. Some more, as whole registers are stored.
    out.reserve(bytes.len() - at + REGISTER);
    loop {
        at = copy_plain(bytes, at, out);
        match (*bytes.get(at)?, bytes.get(at + 1)) {
            (b'"', _) => return Some(at + 1),
            (b'\\', Some(&byte)) if ESCAPES[usize::from(byte)] != 0 => {
                out.push(ESCAPES[usize::from(byte)]);
                at += 2;
            }
            (b'\\', Some(b'u')) => {
                let first = code_unit(bytes, at)?;
                at += 6;
                let point = match first {
                    0xD800..=0xDBFF => {
                        let second = code_unit(bytes, at).filter(|unit| (0xDC00..=0xDFFF).contains(unit))?;
                        at += 6;
                        0x10000 + ((first - 0xD800) << 10 | (second - 0xDC00))
                    }
                    _ => first,
                };
                out.extend_from_slice(char::from_u32(point)?.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => return None,
        }
    }
}

/// What `\` and this byte stand for; 0 for `\u` and for what is no escape.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let known = [
        (b'n', b'\n'),
        (b't', b'\t'),
        (b'r', b'\r'),
        (b'b', 8),
        (b'f', 12),
        (b'"', b'"'),
        (b'\\', b'\\'),
        (b'/', b'/'),
    ];
    let mut i = 0;
    while i < known.len() {
        table[known[i].0 as usize] = known[i].1;
        i += 1;
    }
    table
};

/// Appends plain characters, and mostly the short escapes among them, from `at` on; returns the offset of what stops it.
fn copy_plain(bytes: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    #[cfg(target_arch = "x86_64")]
    let at = match is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        true => unsafe { copy_avx2(bytes, at, out) },
        false => at,
    };
    let rest = &bytes[at..];
    let plain = rest.iter().position(|&byte| stops(byte)).unwrap_or(rest.len());
    out.extend_from_slice(&rest[..plain]);
    at + plain
}

/// As `copy_plain`, up to 33 bytes before the end. Each round takes up to 32 bytes and the escape after them, if there is
/// one, without a branch: half of the rounds have one, which no branch predictor foresees.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn copy_avx2(bytes: &[u8], mut at: usize, out: &mut Vec<u8>) -> usize {
    use std::arch::x86_64::*;
    let (quote, escape, control) =
        (_mm256_set1_epi8(b'"' as i8), _mm256_set1_epi8(b'\\' as i8), _mm256_set1_epi8(0x1F));
    while at + 34 <= bytes.len() && out.capacity() - out.len() >= 33 {
        // SAFETY: 32 bytes are there to read and to write, and after them two to read and one to write. All bytes up
        // to the new length are written.
        unsafe {
            let chunk = _mm256_loadu_si256(bytes.as_ptr().add(at).cast());
            let to = out.as_mut_ptr().add(out.len());
            _mm256_storeu_si256(to.cast(), chunk);
            let either = _mm256_or_si256(_mm256_cmpeq_epi8(chunk, quote), _mm256_cmpeq_epi8(chunk, escape));
            let low = _mm256_cmpeq_epi8(chunk, _mm256_min_epu8(chunk, control));
            let found = _mm256_movemask_epi8(_mm256_or_si256(either, low)) as u32;
            let plain = (u64::from(found) | 1 << 32).trailing_zeros() as usize;
            let stopped = usize::from(found != 0);
            at += plain;
            let byte = ESCAPES[usize::from(*bytes.get_unchecked(at + 1))];
            if found != 0 && (byte == 0 || *bytes.get_unchecked(at) != b'\\') {
                out.set_len(out.len() + plain);
                return at;
            }
            *to.add(plain) = byte;
            out.set_len(out.len() + plain + stopped);
            at += 2 * stopped;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::sources::jsonl::take_by_serde;

    fn check(line: &str, path: &str) -> bool {
        let (mut mine, mut theirs) = (b"before".to_vec(), b"before".to_vec());
        let taken = take_string(line, path, &mut mine);
        if taken {
            assert!(take_by_serde(line, path, &mut theirs), "{line:?} is refused by serde_json");
            assert_eq!(mine, theirs, "{line:?}");
        } else {
            assert_eq!(mine, b"before", "{line:?}");
        }
        taken
    }

    #[test]
    fn usual_lines_are_taken() {
        for line in [
            r#"{"text": "plain"}"#,
            r#" { "a" : 1.5e3 , "text" : "one\ntwo \"x\" \\ \/ \b\f\r\t" , "z" : [1, {"b": null}] } "#,
            r#"{"text":"é你🎉 \u00e9 \ud83c\udf89 and a text that is longer than sixteen bytes","more":"\u12aB \"\\"}"#,
            r#"{"text": "first", "text": "second"}"#,
            r#"{"text":""}"#,
        ] {
            assert!(check(line, "text"), "{line}");
        }
        assert!(check(r#"{"a.b": "x"}"#, "a.b"));
        assert!(!check(r#"{"a": {"a.b": "x"}}"#, "a.b"));
    }

    #[test]
    fn unusual_and_broken_lines_are_left_to_serde() {
        for line in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"te\u0078t": "x"}"#,
            r#"{"text": 1}"#,
            r#"{"text": "x"} y"#,
            r#"{"text": "x",}"#,
            r#"{"text": "x" "a": 1}"#,
            r#"{"text": "\ud83c"}"#,
            r#"{"text": "\ud83cx"}"#,
            r#"{"text": "\udf89"}"#,
            r#"{"text": "\x"}"#,
            r#"{"text": "\u12g4"}"#,
            r#"{"text": "x"#,
            "{\"text\": \"a\u{1}\"}",
            r#"{"text": "x", "a": "\q"}"#,
            r#"{"text": "x", "a": 01}"#,
            r#"{"text": "x", "a": tru}"#,
            r#"{"other": "x"}"#,
            r#"{"text" "x"}"#,
        ] {
            assert!(!check(line, "text"), "{line}");
        }
    }

    #[test]
    fn random_lines_are_read_as_by_serde() {
        let parts: Vec<&str> =
            "{|}|\"|text|\"text\"|:|,| |\\|\\n|\\u00e9|\\ud83c|\\udf89|é|1|-0.5e2|null|true|[|]|\t|\u{1}|\
            {\"text\":\"|\"}|sixteen characters|\\\"|\"a\":|\"a\":\"x\","
                .split('|')
                .collect();
        let mut random = Random(7);
        let mut taken = 0;
        for _ in 0..300_000 {
            let inner: String = (0..random.below(14)).map(|_| random.pick(&parts)).collect();
            let line = if random.below(3) > 0 { format!("{{\"text\":\"{inner}\"}}") } else { inner };
            taken += u32::from(check(&line, "text"));
        }
        assert!(taken > 10_000, "{taken}");
    }
}
