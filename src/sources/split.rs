//! Text -> the pieces between separators.
//!
//! In: text that starts where a piece starts, and ends where one ends. Out: the pieces, without the separators;
//! nothing else is trimmed. A piece that is not UTF-8 is a problem of its own and spoils no other.

use super::{Taken, utf8};
use memchr::memmem;

/// Cuts `text` at every `separator`, left to right.
pub fn split(text: &[u8], separator: &[u8]) -> Taken {
    let mut taken = Taken { data: Vec::with_capacity(text.len()), ..Taken::default() };
    let valid = simdutf8::basic::from_utf8(text).is_ok();
    let mut start = 0;
    let cuts = memmem::find_iter(text, separator);
    for (number, cut) in cuts.chain(std::iter::once(text.len())).enumerate() {
        let piece = &text[start..cut];
        // A separator is valid UTF-8, so it can only be found between characters: a valid whole has valid pieces.
        match if valid { None } else { utf8::first_invalid(piece) } {
            Some(at) => taken.problems.push(number as u64, || utf8::describe(text, start + at, "")),
            None => {
                taken.data.extend_from_slice(piece);
                taken.close(start as i64);
            }
        }
        start = cut + separator.len();
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_everything_but_the_separator() {
        let taken = split(b"a\n--b----c \xff--d", b"--");
        assert_eq!(taken.data, b"a\nbd");
        assert_eq!((taken.ends, taken.origins), (vec![2, 3, 4], vec![0, 4, 14]));
        assert_eq!((taken.empty, taken.problems.count), (1, 1));
        assert_eq!(taken.problems.listed[0].reason, "invalid UTF-8 at byte 11 (found 0xff)");
    }
}
