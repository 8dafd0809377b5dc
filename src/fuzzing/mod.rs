//! Arbitrary bytes -> a check of the core against its definition: what the fuzz targets in `fuzz/` run.
//!
//! [`encode`] reads a vocabulary, options and documents from the bytes and compares the encoder with `definition`;
//! [`pretoken`] reads a text and compares every scanner with its regex. Both panic on a difference, and on nothing else:
//! any bytes are an input. The tests here run both on seeded random inputs and on the inputs kept in `fuzz/seeds/`.

mod definition;
mod encode;
mod pretoken;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use definition::{Definition, Kind, plainly};
pub use encode::encode;
#[cfg(test)]
pub(crate) use pretoken::KINDS;
pub use pretoken::pretoken;

/// The bytes of a fuzzer, read as decisions. After the last byte every decision is 0.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// A number below `n`, which is at most 65,536.
    fn below(&mut self, n: usize) -> usize {
        let low = usize::from(self.byte());
        if n <= 256 { low % n } else { (low | usize::from(self.byte()) << 8) % n }
    }

    /// True once in `n` bytes.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn pick<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.below(choices.len())]
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pieces in runs, up to about `most` bytes. `long` runs go beyond 512 bytes, where words are merged differently.
    fn text(&mut self, pieces: &[String], most: usize, long: bool) -> String {
        let mut text = String::new();
        for _ in 0..self.below(64) {
            let piece = self.pick(pieces);
            let run = self.byte();
            let times = match run % 16 {
                0..9 => 1,
                9..12 => 2,
                12 => 3 + usize::from(run / 16),
                13 => 5 * usize::from(run / 16),
                // Says again what was said last, so that caches hit and words have a period.
                14 => {
                    let from = text.char_indices().rev().nth(usize::from(run / 16)).map_or(0, |(at, _)| at);
                    text.extend_from_within(from..);
                    0
                }
                _ if long => 60 * usize::from(run / 16),
                _ => 70,
            };
            for _ in 0..times {
                if text.len() + piece.len() > most {
                    return text;
                }
                text += piece;
            }
        }
        text
    }

    /// Any bytes, as text: what is not valid UTF-8 is replaced.
    fn any_text(&mut self, most: usize) -> String {
        String::from_utf8_lossy(self.raw(most)).into_owned()
    }

    /// Up to `most` bytes as they are.
    fn raw(&mut self, most: usize) -> &[u8] {
        let (raw, rest) = self.0.split_at(self.0.len().min(most));
        self.0 = rest;
        raw
    }
}

/// Each character by itself.
fn letters(text: &str) -> Vec<String> {
    text.chars().map(String::from).collect()
}
