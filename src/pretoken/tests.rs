//! The scanners against the regex, on texts made to meet every rule next to every other one.

use super::block::{BLOCK, Block};
use super::classes::{self, classes};
use super::fast::{Scanner, Text, scan};
use super::split::Visitor;
use super::wide::{Blocks, Characters, Portable};
use super::{Split, TABLE};
use crate::fuzzing::KINDS;
use crate::random::Random;
use fancy_regex::Regex;
use rayon::prelude::*;

mod own;

/// Every row of the table but `none`.
fn named() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| !row.patterns.is_empty()).map(|row| row.name)
}

fn split(name: &str) -> Split {
    Split::new(name).expect(name)
}

fn fast(split: &Split, text: &str) -> Vec<usize> {
    let mut ends = vec![];
    split
        .for_each(text, |pretoken| ends.push(pretoken.as_ptr_range().end as usize - text.as_ptr() as usize))
        .expect("a named split cannot fail");
    ends
}

fn reference(split: &Split, text: &str) -> Vec<usize> {
    let mut ends = vec![];
    let mut end = 0;
    split
        .reference_for_each(text, |pretoken| {
            end += pretoken.len();
            ends.push(end);
        })
        .expect("these texts are short");
    ends
}

/// As `fast`, with one of the ways to read blocks.
struct By<'t, B>(B, &'t str);

impl<B: Blocks> Visitor for By<'_, B> {
    type Out = Vec<usize>;

    fn scanner<S: Scanner>(self) -> Vec<usize> {
        let By(blocks, text) = self;
        let mut ends = vec![];
        scan::<S, B>(blocks, text, |pretoken| ends.push(pretoken.as_ptr_range().end as usize - text.as_ptr() as usize));
        ends
    }

    fn whole(self) -> Vec<usize> {
        vec![self.1.len()]
    }

    fn general(self, split: &Split) -> Vec<usize> {
        fast(split, self.1)
    }
}

/// The ends by every way to read blocks that this processor has; they are the same.
fn in_every_way(split: &Split, text: &str) -> Vec<usize> {
    let ends = split.visit(By(Portable, text));
    assert_eq!(fast(split, text), ends, "{} {text:?}", split.name());
    #[cfg(target_arch = "x86_64")]
    if let Some(avx512) = super::wide::Avx512::detect() {
        assert_eq!(split.visit(By(avx512, text)), ends, "{} {text:?}", split.name());
    }
    ends
}

#[track_caller]
fn check(split: &Split, text: &str) {
    let (got, want) = (in_every_way(split, text), reference(split, text));
    if got != want {
        let same = got.iter().zip(&want).take_while(|(got, want)| got == want).count();
        let from = if same == 0 { 0 } else { got[same - 1] };
        let near: String = text[from..].chars().take(80).collect();
        panic!("{}: from byte {from} {near:?}: {:?}, regex {:?}", split.name(), got.get(same), want.get(same));
    }
    assert_eq!(got.last().copied().unwrap_or(0), text.len());
}

impl Random {
    fn any_char(&mut self) -> char {
        let limit = self.pick(&[0x80, 0x300, 0x3100, 0x11_0000]);
        char::from_u32(self.below(limit) as u32).unwrap_or('\u{fffd}')
    }

    /// Up to eight of `kinds`, now and then any other character, in fewer than `most` runs of one to (rarely) ninety.
    fn text(&mut self, kinds: &[char], most: usize) -> String {
        let some: Vec<char> = (0..1 + self.below(8)).map(|_| self.pick(kinds)).collect();
        let mut text = String::new();
        for _ in 0..self.below(most) {
            let c = if self.below(8) == 0 { self.any_char() } else { self.pick(&some) };
            let len = [1, 1, 1, 1, 1, 2, 2, 3, 4, 7, self.below(12), self.below(90)][self.below(12)];
            text.extend(std::iter::repeat_n(c, len));
        }
        text
    }
}

/// A text in which every word of `order` characters over `alphabet` occurs: de Bruijn's, by Duval's Lyndon words.
fn every_mix(alphabet: &[char], order: usize) -> String {
    let mut text = String::new();
    let mut word = vec![0];
    loop {
        if order.is_multiple_of(word.len()) {
            text.extend(word.iter().map(|&letter| alphabet[letter]));
        }
        let period = word.len();
        word = (0..order).map(|at| word[at % period]).collect();
        while word.last() == Some(&(alphabet.len() - 1)) {
            word.pop();
        }
        let Some(last) = word.last_mut() else { break };
        *last += 1;
    }
    // The words that run over the end and begin again.
    let first: String = text.chars().take(order).collect();
    text + &first
}

#[test]
fn a_de_bruijn_text_has_every_word() {
    let text = every_mix(&['a', 'b', 'c'], 3);
    assert_eq!(text.len(), 27 + 3);
    for word in 0..27 {
        let word: String = [word / 9, word / 3 % 3, word % 3].map(|letter| ["a", "b", "c"][letter]).concat();
        assert!(text.contains(&word), "{word}");
    }
}

#[test]
fn every_mix_of_five_or_six_kinds() {
    for name in named() {
        let split = split(name);
        for (alphabet, order) in [
            (" \nasA1'/!", 5),
            (" \n\tal'!1", 6),
            ("'sSlLvea ", 5),
            ("aA\u{301}\u{4e2d}' ", 6),
            ("A\u{301}\u{1c5}'s\u{17f}", 6),
            (" \n\u{3000}a!\u{85}", 6),
            ("\u{663}1a \u{301}/\n", 5),
        ] {
            check(&split, &every_mix(&alphabet.chars().collect::<Vec<_>>(), order));
        }
    }
}

#[test]
fn every_short_text_on_its_own_and_behind_a_block() {
    let kinds: Vec<char> = KINDS.chars().collect();
    let fill = "fill the block, ".repeat(4);
    let names: Vec<_> = named().collect();
    names.into_par_iter().for_each(|name| {
        let split = split(name);
        for a in &kinds {
            for b in &kinds {
                for c in &kinds {
                    let text = String::from_iter([a, b, c]);
                    check(&split, &text);
                    // Where the three lie in the block must not matter: at its end, across it, past it.
                    let shift = (*a as usize + *b as usize + *c as usize) % 12;
                    check(&split, &format!("{}{text}", &fill[shift..]));
                }
            }
        }
        check(&split, &every_mix(&kinds, 3));
    });
}

#[test]
fn random_texts() {
    let kinds: Vec<char> = KINDS.chars().collect();
    let mut random = Random(1);
    for name in named() {
        let split = split(name);
        check(&split, "");
        for _ in 0..300 {
            check(&split, &random.text(&kinds, 120));
        }
    }
}

/// Whether a word may begin where `Block::resumes` says so: then it ends where the word ends that goes on there.
struct Resume<'t, B>(B, &'t str);

impl<B: Blocks> Visitor for Resume<'_, B> {
    type Out = usize;

    fn scanner<S: Scanner>(self) -> usize {
        let Resume(blocks, text) = self;
        let bytes = text.as_bytes();
        let text = Text::new(bytes);
        let mut characters = Characters::default();
        let (mut start, mut places) = (0, 0);
        while start < bytes.len() {
            let mut padded = [0x80; BLOCK];
            let len = BLOCK.min(bytes.len() - start);
            padded[..len].copy_from_slice(&bytes[start..start + len]);
            let block: Block = blocks.block(&padded, text.classes, &mut characters);
            let resumes = if block.is_ascii() { 0 } else { blocks.spread(block.resumes(), block.chars) };
            let next = S::end(&text, start);
            let (mut from, mut end) = (start, next);
            for place in (0..BLOCK).filter(|place| resumes >> place & 1 != 0).map(|place| start + place) {
                while end <= place {
                    (from, end) = (end, S::end(&text, end));
                }
                if place > from {
                    assert_eq!(S::end(&text, place), end, "{:?} at {place}", str::from_utf8(bytes));
                    places += 1;
                }
            }
            start = next;
        }
        places
    }

    fn whole(self) -> usize {
        0
    }

    fn general(self, _: &Split) -> usize {
        0
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_word_may_begin_anew_where_it_is_said_to_resume() {
    let kinds: Vec<char> = KINDS.chars().chain("\u{4e2d}\u{56fd}\u{d55c}\u{ae00}\u{30a2}\u{627}".chars()).collect();
    let mut random = Random(5);
    for row in TABLE.iter().filter(|row| !row.patterns.is_empty() && !row.name.ends_with("superwords")) {
        let split = split(row.name);
        let mut places = 0;
        for _ in 0..400 {
            let text = random.text(&kinds, 60);
            if let Some(avx2) = super::wide::Avx2::detect() {
                places += split.visit(Resume(avx2, &text));
            }
            if let Some(avx512) = super::wide::Avx512::detect() {
                places += split.visit(Resume(avx512, &text));
            }
        }
        assert!(places > 1000 || super::wide::Avx2::detect().is_none(), "{}: {places}", row.name);
    }
}

/// Run by hand: `SOAK=10000000 cargo test --release --no-default-features soak -- --ignored`.
#[test]
#[ignore = "minutes; the number of texts is in the environment"]
fn soak() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    let kinds: Vec<char> = KINDS.chars().collect();
    let mut random = Random(setting("SOAK_SEED", 2) as u64);
    let splits = named().map(split).collect::<Vec<_>>();
    for _ in 0..setting("SOAK", 100_000) {
        let most = if random.below(8) == 0 { 100 } else { 16 };
        let text = random.text(&kinds, most);
        splits.iter().for_each(|split| check(split, &text));
    }
}

#[test]
fn the_table_of_classes_is_the_regex_engines() {
    let table = classes();
    for (class, kinds) in [
        (r"[\p{Lu}\p{Lt}]", classes::UPPER),
        (r"\p{Ll}", classes::LOWER),
        (r"\p{L}", classes::LETTER),
        (r"\p{M}", classes::MARK),
        (r"\p{N}", classes::NUMBER),
        (r"\s", classes::WHITE),
        (r"[^\r\n\p{L}\p{N}]", classes::BLANK | classes::SYMBOL),
        (r"[\p{Lm}\p{Lo}]", classes::CASELESS),
        (r"[\p{P}\p{S}]", classes::PUNCTUATION),
        (r"[^\s\p{L}\p{M}\p{N}\p{P}\p{S}]", classes::REST),
        (r"[一-龥\u3040-ゟ゠-ヿ]", classes::IDEOGRAPHIC),
        (r"[\s\S]", classes::ANY),
        (r"[^\s\p{L}\p{N}]", classes::SYMBOL),
    ] {
        let regex = Regex::new(&format!("{class}+")).expect(class);
        let all: String = ('\0'..=char::MAX).collect();
        let found: String = regex.find_iter(&all).map(|found| found.expect("no backtracking").as_str()).collect();
        let want: String = ('\0'..=char::MAX).filter(|&c| 1 << table[c as usize] & kinds != 0).collect();
        assert!(found == want, "{class}");
    }
}

#[test]
fn no_letter_beyond_the_long_s_folds_into_a_contraction() {
    let regex = Regex::new("(?i:[stredvml])").expect("a class");
    let all: String = ('\u{80}'..=char::MAX).collect();
    let found: String = regex.find_iter(&all).map(|found| found.expect("no backtracking").as_str()).collect();
    assert_eq!(found, "\u{17f}");
}

/// tiktoken's present forms. o200k has none.
const POSSESSIVE: [(&str, &str); 2] = [
    ("gpt2", r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"),
    (
        "cl100k",
        concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+",
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
    ),
];

#[test]
fn tiktokens_possessive_forms_cut_alike() {
    let kinds: Vec<char> = KINDS.chars().collect();
    let mix = every_mix(&kinds, 3) + "x";
    for (name, pattern) in POSSESSIVE {
        let possessive = split(pattern);
        assert_eq!(possessive.name(), "regex");
        for text in [&mix, "", "a  ", " \t", "\n", "a \n", "! \r\n\n", "a\u{3000} "] {
            assert_eq!(reference(&possessive, text), fast(&split(name), text), "{name}: {text:?}");
        }
    }
}

#[test]
fn tiktokens_possessive_cl100k_takes_the_blanks_after_the_last_newline_of_a_text_along() {
    // Its `\s++$` stands before `\s*[\r\n]`, the plain form's `\s+(?!\S)` after it. It shows nowhere else.
    assert_eq!(reference(&split(POSSESSIVE[1].1), "a \n  "), [1, 5]);
    assert_eq!(fast(&split("cl100k"), "a \n  "), [1, 3, 5]);
    assert_eq!(reference(&split("cl100k"), "a \n  "), [1, 3, 5]);
}

#[test]
fn a_very_long_run_is_no_trouble() {
    for name in named() {
        for c in [" ", "\n", "a", "A", "1", "!", "/", "'", "\u{301}", "\u{3000}", "\n ", "\u{301}A"] {
            let text = c.repeat(3_000_000) + "x";
            let mut total = 0;
            split(name).for_each(&text, |pretoken| total += pretoken.len()).expect("a named split cannot fail");
            assert_eq!(total, text.len());
        }
    }
}

#[test]
fn what_a_regex_skips_is_a_pretoken_and_an_empty_match_only_cuts() {
    let cut = |pattern: &str, text: &str| {
        let mut pretokens = vec![];
        split(pattern)
            .for_each(text, |pretoken| pretokens.push(String::from_utf8_lossy(pretoken).into_owned()))
            .expect(pattern);
        pretokens.join("|")
    };
    assert_eq!(cut(r"\d+", "ab12cd3"), "ab|12|cd|3");
    assert_eq!(cut(r"\d+", "no digits"), "no digits");
    assert_eq!(cut("a*", "baab"), "b|aa|b");
    assert_eq!(cut("a*", "b\u{4e2d}b"), "b|\u{4e2d}|b");
    assert_eq!(cut(r"(?=b)", "abab"), "a|ba|b");
    assert_eq!(cut("none", "a b"), "a b");
    assert_eq!(cut("none", ""), "");
}

#[test]
fn a_bad_regex_is_named_with_the_way_out() {
    let message = Split::new("(a").expect_err("unclosed").to_string();
    for part in ["`(a`", "Opening parenthesis", "gpt2, cl100k, o200k, qwen2"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(Split::new("").is_err());
}

#[test]
fn a_regex_that_gives_up_is_an_error_with_its_place() {
    let split = split(r"(a|b|ab)*\1c");
    let mut seen = 0;
    let failed = split.for_each(&format!("abbc{}", "ab".repeat(60)), |pretoken| seen += pretoken.len());
    let message = failed.expect_err("exponential").to_string();
    assert!(message.contains("after byte 4") && message.contains(r"(a|b|ab)*\1c"), "{message}");
    assert_eq!(seen, 4);
}

#[test]
fn a_published_pattern_is_the_named_split() {
    for row in &TABLE {
        let named = split(row.name);
        assert_eq!(named.name(), row.name);
        assert_eq!(named.patterns(), row.patterns);
        assert_eq!(Split::sequence(row.patterns).expect("its own patterns").name(), row.name);
        for alias in row.aliases {
            assert_eq!(split(alias).name(), row.name);
        }
        if let [pattern] = row.patterns {
            assert_eq!(split(&format!("regex:{pattern}")).name(), row.name);
            // As a tokenizer.json may have it.
            assert_eq!(split(&pattern.replace(r"\r", "\r").replace(r"\n", "\n")).name(), row.name);
        }
    }
    assert_eq!(split("x+").patterns(), ["x+"]);
    assert_eq!(split("regex:x").patterns(), ["x"]);
}

#[test]
fn no_name_stands_for_two_splits_or_could_be_a_regex() {
    let mut names: Vec<&str> = TABLE.iter().flat_map(|row| [&[row.name], row.aliases].concat()).collect();
    for name in &names {
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c)), "{name}");
    }
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn a_sequence_cuts_each_piece_as_if_it_were_a_text() {
    let cut = |specs: &[&str], text: &str| {
        let split = Split::sequence(specs).expect("all are good");
        let mut pretokens = vec![];
        split.for_each(text, |pretoken| pretokens.push(String::from_utf8_lossy(pretoken).into_owned())).expect("short");
        assert_eq!(fast(&split, text), reference(&split, text));
        (split.name(), pretokens.join("|"))
    };
    // Alone, gpt2 gives the last blank to the number.
    assert_eq!(cut(&["gpt2"], "a  12"), ("gpt2", "a| | 12".into()));
    assert_eq!(cut(&[r"\p{N}+", "gpt2"], "a  12"), ("sequence", "a|  |12".into()));
    assert_eq!(cut(&[r"\p{N}", "gpt2"], "a  12"), ("digits-then-gpt2", "a|  |1|2".into()));
    assert_eq!(cut(&["none", r"\p{N}", "none", "gpt2"], "a 1"), ("digits-then-gpt2", "a| |1".into()));
    assert_eq!(cut(&["(?<=a)b", "[c]"], ""), ("sequence", String::new()));
    // To the second the first `b` begins a text: nothing stands before it.
    assert_eq!(cut(&["[a]", "(?<=a)b|c$"], "abbcb"), ("sequence", "a|bbcb".into()));
    assert_eq!(cut(&["[a]", "c$"], "bcabca"), ("sequence", "b|c|a|b|c|a".into()));
    assert_eq!(cut(&[], "a b"), ("none", "a b".into()));
    assert_eq!(cut(&["none"], "a b"), ("none", "a b".into()));
    assert_eq!(cut(&["qwen2"], "a 1"), ("qwen2", "a| |1".into()));
}

#[test]
fn a_sequence_that_fails_says_so() {
    let split = Split::sequence(&["[x]", r"(a|b|ab)*\1c"]).expect("both compile");
    let failed = split.for_each(&format!("abx{}xab", "ab".repeat(60)), |_| {});
    assert!(failed.expect_err("exponential").to_string().contains(r"(a|b|ab)*\1c"));
}

#[test]
fn an_unknown_name_is_an_error_with_the_nearest() {
    for (spec, part) in [
        ("qwen9", "Did you mean `qwen2` or `qwen` (qwen2) or `qwen2.5` (qwen2) or `qwen3` (qwen2) or `qwen3.5` or"),
        ("gpt5", "Did you mean `gpt2` or `gpt4` (cl100k) or `gpt4o` (o200k) or `gpt-oss` (o200k)?"),
        ("gpt-4", "Did you mean `gpt4` (cl100k)?"),
        ("GPT2", "Did you mean `gpt2`?"),
        ("cl100k_base", "Did you mean `cl100k`?"),
        ("llama-3", "Did you mean `llama3` (cl100k)?"),
        ("deepseek", "none has this name. Choose gpt2, cl100k,"),
        ("hello", "If it is a regex, write `regex:hello`."),
        ("a.b", "write `regex:a.b`"),
        (" ", "write `regex: `"),
        ("", "none has this name"),
        ("regex:", "an empty regex"),
    ] {
        let message = Split::new(spec).expect_err(spec).to_string();
        assert!(message.contains(part), "{message}");
    }
    for spec in ["regex:hello", "hello|", "a\\.b", "[x]", "x{2}", "regex:gpt2"] {
        assert_eq!(split(spec).name(), "regex", "{spec}");
    }
}

#[test]
fn where_a_split_cuts_at_spaces_two_halves_are_the_whole() {
    // Every place the property speaks of, between every two kinds of characters on either side.
    let kinds: Vec<char> = KINDS.chars().collect();
    let mut random = Random(5);
    for row in &TABLE {
        let split = split(row.name);
        let mut all_alike = true;
        for visible in '!'..='~' {
            for cut_at in [' ', '\n'] {
                if cut_at == '\n' && !visible.is_ascii_alphanumeric() {
                    continue;
                }
                for _ in 0..40 {
                    let some = |n: usize, random: &mut Random| -> String {
                        (0..random.below(n)).map(|_| random.pick(&kinds)).collect()
                    };
                    let before = format!("{}{visible}", some(6, &mut random));
                    let after = format!("{cut_at}{}", some(6, &mut random));
                    let mut halves = fast(&split, &before);
                    halves.extend(fast(&split, &after).iter().map(|end| end + before.len()));
                    all_alike &= halves == fast(&split, &format!("{before}{after}"));
                }
            }
        }
        assert_eq!(all_alike, row.cuts_at_spaces, "{}", row.name);
    }
}
