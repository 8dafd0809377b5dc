//! Which documents are not UTF-8, and from which byte on.

use crate::arrays::slices;

/// The first byte of `text` that is not UTF-8.
pub fn first_invalid(text: &[u8]) -> Option<usize> {
    // `basic` only says yes or no and is the faster of the two; nearly every text is valid.
    if simdutf8::basic::from_utf8(text).is_ok() {
        return None;
    }
    simdutf8::compat::from_utf8(text).err().map(|error| error.valid_up_to())
}

/// What to say about the byte at `at` in `text`, which starts at byte `base` of its file.
pub fn describe(text: &[u8], at: usize, base: u64) -> String {
    let found = text.get(at).copied().unwrap_or(0);
    format!("invalid UTF-8 at byte {} (found 0x{found:02x})", base + at as u64)
}

/// Every document of `data` that is not UTF-8: its number, and its first bad byte.
///
/// The whole buffer is checked at once. Valid as a whole, a document can still be cut inside a character; then
/// the byte after its end is a continuation byte, and so is the first byte of the next.
pub fn invalid_documents(data: &[u8], ends: &[i64]) -> Vec<(u64, u64)> {
    let inside = |end: i64| data.get(end as usize).is_some_and(|byte| byte & 0xC0 == 0x80);
    if simdutf8::basic::from_utf8(data).is_ok() && !ends.iter().any(|&end| inside(end)) {
        return Vec::new();
    }
    documents_with(data, ends, first_invalid)
}

/// Every document of `data` in which `find` finds something: its number, and where it is in it.
pub fn documents_with(data: &[u8], ends: &[i64], find: impl Fn(&[u8]) -> Option<usize>) -> Vec<(u64, u64)> {
    let documents = (0..).zip(slices(data, ends));
    documents.filter_map(|(number, document)| Some((number, find(document)? as u64))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_cut_by_a_border_spoils_both_sides() {
        // "é" is two bytes; the border falls between them.
        assert_eq!(invalid_documents("aé!".as_bytes(), &[2, 4]), [(0, 1), (1, 0)]);
        assert_eq!(invalid_documents("aé!".as_bytes(), &[3, 4]), []);
    }

    #[test]
    fn only_the_bad_document_is_named() {
        assert_eq!(invalid_documents(b"ok\xff\xfeok", &[2, 4, 6]), [(1, 0)]);
    }
}
