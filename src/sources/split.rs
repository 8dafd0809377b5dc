//! Text -> the pieces between separators.
//!
//! In: text that starts where a piece starts. Out: the pieces, without the separators; nothing else is trimmed.
//! A piece that is not UTF-8 is a separate problem and affects no other piece.

use super::{Taken, utf8};
use memchr::memmem;

/// Cuts `text`, which starts at byte `base` of its file, at every `separator`, left to right.
///
/// Unless this is the `last` of the file, what follows the last separator may go on: it is not taken. Gives the
/// pieces, and how many bytes are done with. The leftmost separator of a prefix is the leftmost of the whole,
/// so the pieces do not depend on how the file was cut into buffers. With `raw`, pieces may be any bytes.
pub fn split(text: &[u8], separator: &[u8], base: u64, last: bool, raw: bool) -> (Taken, usize) {
    let mut taken = Taken { data: Vec::with_capacity(text.len()), ..Taken::default() };
    let mut start = 0;
    let cuts = memmem::find_iter(text, separator);
    for (number, cut) in cuts.chain(last.then_some(text.len())).enumerate() {
        let piece = &text[start..cut];
        match utf8::first_invalid(piece).filter(|_| !raw) {
            Some(at) => taken.problems.push(number as u64, || utf8::describe(piece, at, start as u64 + base)),
            None => {
                taken.data.extend_from_slice(piece);
                taken.close((start as u64 + base) as i64);
            }
        }
        start = cut + separator.len();
    }
    (taken, start.min(text.len()))
}
