//! Word by word against the whole text, block by block against character by character, and what the proof assumes.

use super::classes::{self, *};
use super::*;
use crate::encode::isa::Portable;
use crate::pretoken::block::BLOCK;
use crate::pretoken::wide::Characters;
use crate::random::Random;

const ALL: [&str; 9] = ["a", "##a", "##b", "ab", "e", "##e", "##abab", "=", "\u{4e2d}"];

fn options(bits: u32) -> Options {
    let [clean, chinese, strip_accents, lowercase] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
    Options { unk: 99, prefix: "##".to_owned(), max_chars: 20, clean, chinese, strip_accents, lowercase }
}

fn wordpiece(options: &Options) -> WordPiece {
    // Single characters too, so that an id tells which one it was.
    let characters: Vec<String> =
        KINDS.chars().chain("n.i\u{2002}".chars()).flat_map(|c| [c.to_string(), format!("##{c}")]).collect();
    let tokens = ALL.into_iter().chain(characters.iter().map(String::as_str));
    let tokens: Vec<(&[u8], u32)> = tokens.enumerate().map(|(id, token)| (token.as_bytes(), 100 + id as u32)).collect();
    WordPiece::new(&tokens, options).expect("a small vocabulary")
}

/// One or more of each kind: white space that is deleted or not, punctuation, letters; then beyond ASCII: letters that
/// decompose, marks of class 230 (0301), 0 (093f is spacing, 0941 is not) and spacing ones with a class (302e: 224,
/// 1d165: 216), what decomposes into punctuation, ideographs, formats, private use, Hangul.
const KINDS: &str = " \n\t\x0b\x0c\x01aAbB1!$'\
    \u{e9}\u{c9}\u{130}\u{301}\u{323}\u{93f}\u{941}\u{302e}\u{1d165}\u{2260}\u{1fef}\u{37e}\u{387}\u{4e2d}\u{f900}\
    \u{2f800}\u{200b}\u{ad}\u{fffd}\u{e000}\u{a0}\u{85}\u{2000}\u{3000}\u{2014}\u{ac01}\u{430}\u{3b1}\u{1f600}";

/// Runs of a few of the kinds.
fn text(random: &mut Random) -> String {
    let kinds: Vec<char> = KINDS.chars().collect();
    let some: Vec<char> = (0..1 + random.below(9)).map(|_| random.pick(&kinds)).collect();
    let mut text = String::new();
    for _ in 0..random.below(90) {
        let len = [1, 1, 1, 1, 2, 3, random.below(30)][random.below(7)];
        text.extend(std::iter::repeat_n(random.pick(&some), len));
    }
    text
}

/// The steps of the pipeline on a whole text, one after another, with nothing of the table of classes but the ideographs.
fn plain(text: &str, options: &Options, classes: &Classes) -> Vec<String> {
    use unicode_categories::UnicodeCategories;
    use unicode_normalization_alignments::UnicodeNormalization;
    let mut text = text.to_owned();
    if options.clean {
        let keeps = |c: &char| "\t\n\r".contains(*c) || !(*c == '\u{fffd}' || c.is_other());
        text = text.chars().filter(keeps).map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    }
    if options.chinese {
        let ideograph = |c: char| classes[c as usize] & CJK != 0;
        text = text.chars().map(|c| if ideograph(c) { format!(" {c} ") } else { c.to_string() }).collect();
    }
    if options.strip_accents {
        text = text.nfd().map(|(c, _)| c).filter(|c| !c.is_mark_nonspacing()).collect();
    }
    if options.lowercase {
        text = text.chars().flat_map(char::to_lowercase).collect();
    }
    let mut words = vec![];
    for part in text.split(char::is_whitespace) {
        let mut word = String::new();
        for c in part.chars() {
            if c.is_ascii_punctuation() || c.is_punctuation() {
                words.extend([std::mem::take(&mut word), c.to_string()]);
            } else {
                word.push(c);
            }
        }
        words.push(word);
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn encoding_word_by_word_is_encoding_the_whole_text_is_the_plain_pipeline() {
    let mut random = Random(1);
    for bits in 0..16 {
        let options = options(bits);
        let wordpiece = wordpiece(&options);
        for _ in 0..400 {
            let text = text(&mut random);
            let (mut by_word, mut whole, mut want) = (vec![], vec![], vec![]);
            let mut scratch = Scratch::default();
            wordpiece.raw_words(&text).iter().for_each(|word| wordpiece.encode(word, &mut scratch, &mut by_word));
            wordpiece.encode(text.as_bytes(), &mut scratch, &mut whole);
            for word in plain(&text, &options, &wordpiece.classes) {
                wordpiece.cut_plainly(&word, &mut want);
            }
            assert_eq!(by_word, want, "{text:?} {options:?}");
            assert_eq!(whole, want, "{text:?} {options:?}");
        }
    }
}

impl WordPiece {
    /// The raw words of a text, by blocks where these say something.
    fn raw_words<'t>(&self, text: &'t str) -> Vec<&'t [u8]> {
        let (bytes, mut words, mut at) = (text.as_bytes(), vec![], 0);
        let mut add = |at: &mut usize, end: usize| words.push(&bytes[std::mem::replace(at, end)..end]);
        while at < bytes.len() {
            let block = bytes[at..].first_chunk::<BLOCK>();
            let mut starts = block.map_or(0, |block| self.starts(Portable, block, &mut Characters::default()));
            if starts == 0 {
                let end = self.end(bytes, at);
                add(&mut at, end);
            }
            let base = at;
            while starts != 0 {
                add(&mut at, base + starts.trailing_zeros() as usize);
                starts &= starts - 1;
            }
        }
        words
    }

    /// Appends the ids of a normalized word, one search after another.
    fn cut_plainly(&self, word: &str, out: &mut Vec<u32>) {
        let before = out.len();
        let (mut root, mut at) = (self.start.root, 0);
        while at < word.len() {
            let found =
                self.trie.longest(root, &word.as_bytes()[at..]).filter(|_| word.chars().count() <= self.max_chars);
            let Some((id, len)) = found else {
                out.truncate(before);
                return out.push(self.unk);
            };
            out.push(id);
            (root, at) = (self.middle.root, at + len);
        }
    }
}

#[test]
fn words_tile_the_text_and_blocks_cut_as_single_steps_do() {
    let mut random = Random(2);
    for bits in 0..4 {
        let options = options(bits);
        let wordpiece = wordpiece(&options);
        for _ in 0..1000 {
            let text = text(&mut random);
            let fast = wordpiece.raw_words(&text).into_iter().map(|word| String::from_utf8_lossy(word).into_owned());
            let (fast, mut slow): (Vec<_>, _) = (fast.collect(), vec![]);
            let mut at = 0;
            while at < text.len() {
                let end = wordpiece.end(text.as_bytes(), at);
                assert!(end > at);
                slow.push(text[at..end].to_owned());
                at = end;
            }
            assert_eq!(fast, slow, "{options:?}");
            assert_eq!(fast.concat(), text);
            let own = |c: char| wordpiece.classes[c as usize];
            for (number, word) in fast.iter().enumerate() {
                let body = word.trim_start_matches(|c| own(c) & WHITE != 0);
                let alone = body.chars().any(|c| own(c) & (PUNCTUATION | CJK) != 0);
                assert!(body.chars().all(|c| own(c) & WHITE == 0), "{word:?}");
                assert!(!alone || body.chars().count() == 1, "{word:?}");
                let next_is_white = fast.get(number + 1).is_none_or(|next| next.starts_with(|c| own(c) & WHITE != 0));
                assert!(!body.is_empty() || next_is_white, "white space alone before a word");
            }
        }
    }
}

#[test]
fn what_the_proof_says_about_characters_is_so_for_every_code_point() {
    for bits in 0..16 {
        let options = options(bits);
        let table = classes::build(&options);
        for c in '\0'..=char::MAX {
            let class = table[c as usize];
            let mut parts = vec![];
            if class & DECOMPOSES != 0 {
                decompose_canonical(c, |part| parts.push(part));
            } else {
                parts.push(c);
            }
            // Deleted characters have no other flag, so nothing else is done to them and they cut nothing.
            assert!(class & DELETED == 0 || class == DELETED, "{c:?}");
            if class & (WHITE | PUNCTUATION | CJK) != 0 && options.strip_accents {
                assert!(parts.iter().all(|&part| canonical_combining_class(part) == 0), "{c:?} moves");
                assert!(parts.iter().all(|&part| table[part as usize] & (MARK | REORDERS) == 0), "{c:?} goes");
            }
            for kind in [WHITE, PUNCTUATION] {
                if class & kind != 0 {
                    assert!(parts.len() == 1 && table[parts[0] as usize] & kind != 0, "{c:?} does not stay what it is");
                }
            }
            for part in parts {
                // What the cleaner deletes comes from no decomposition, and lower-casing makes nothing that separates.
                assert!(class == DELETED || table[part as usize] & (DELETED | DECOMPOSES) == 0 || part == c);
                if table[part as usize] & CASED != 0 {
                    assert!(table[part as usize] & (WHITE | PUNCTUATION | MARK) == 0);
                    for lower in part.to_lowercase() {
                        assert!(table[lower as usize] & (WHITE | PUNCTUATION) == 0, "{c:?}");
                    }
                }
            }
        }
        // The lead bytes that `scan` takes for letters.
        for code_point in (0xc0..0x340).chain(0x400..0x540) {
            assert!(table[code_point] & (WHITE | PUNCTUATION | CJK) == 0);
        }
    }
}

#[test]
fn a_word_of_many_characters_is_unknown_and_takes_no_memory() {
    let wordpiece = wordpiece(&options(15));
    let mut scratch = Scratch::default();
    for (c, count) in [("a", 20), ("a", 21), ("\u{430}", 21), ("a", 3_000_000), ("\u{302e}", 3_000_000)] {
        let mut out = vec![];
        wordpiece.encode(c.repeat(count).as_bytes(), &mut scratch, &mut out);
        assert_eq!(out == [99], count > 20, "{c} {count}");
        assert!(scratch.text.capacity() < 600 && scratch.pending.capacity() < 100);
    }
    // One raw word of many words: each is an equals sign and a mark that goes.
    let mut out = vec![];
    wordpiece.encode("\u{2260}".repeat(300_000).as_bytes(), &mut scratch, &mut out);
    assert!(out.len() == 300_000 && out.iter().all(|id| *id == out[0]));
    assert!(scratch.text.capacity() < 10_000 && scratch.words.capacity() < 10_000);
    // Marks that go do not count.
    let mut out = vec![];
    wordpiece.encode("e\u{301}".repeat(20).as_bytes(), &mut scratch, &mut out);
    assert_eq!(out.len(), 20);
    assert!(!out.contains(&99));
}

#[test]
fn a_prefix_may_be_empty_or_of_letters() {
    for (prefix, word, want) in [("", "abab", vec![1, 1]), ("x", "abab", vec![1, 2]), ("x", "xabab", vec![2, 2])] {
        let options = Options { prefix: prefix.to_owned(), ..options(15) };
        let wordpiece = WordPiece::new(&[(b"ab", 1), (b"xab", 2)], &options).expect("two tokens");
        let (mut scratch, mut out) = (Scratch::default(), vec![]);
        wordpiece.encode(word.as_bytes(), &mut scratch, &mut out);
        assert_eq!(out, want);
    }
}
