//! The encoder against the definition of BPE, on vocabularies and texts made to go wrong.

use super::Instructions::{Avx2, Best, Portable};
use super::*;
use crate::fuzzing::{Definition, Kind};
use crate::pretoken::Split;
use crate::random::Random;

impl Random {
    /// At most so many of the letters.
    fn letters(&mut self, letters: &str, most: usize) -> String {
        let letters: Vec<char> = letters.chars().collect();
        (0..self.below(most + 1)).map(|_| self.pick(&letters)).collect()
    }
}

/// Byte-level BPE, with ids that are not indexes.
fn definition(split: &str, tokens: Vec<Vec<u8>>, merges: Option<Vec<[u32; 2]>>, whole_words: bool) -> Definition {
    let ids = (0..tokens.len() as u32).map(|index| 3 * index + 7).collect();
    let kind = Kind::Bytes { split: Split::new(split).expect("a split"), whole_words };
    Definition { kind, tokens, ids, merges, steps: vec![], added: vec![], prefix: Prefix::Never }
}

fn encoder(definition: &Definition, cache_bytes: usize, instructions: Instructions) -> Encoder {
    definition.encoder(cache_bytes, instructions).expect("an encoder")
}

fn plainly(definition: &Definition, text: &str) -> Vec<u32> {
    definition.encode(text, &|_| false)
}

fn bytes() -> Vec<Vec<u8>> {
    (0..=255).map(|byte| vec![byte]).collect()
}

fn random_vocabulary(random: &mut Random, split: &str, ranks: bool) -> Definition {
    if ranks { random_ranks(random, split) } else { random_merges(random, split) }
}

/// Ranks over a few letters, in any order: parts may rank after what they make, and some tokens cannot be reached.
fn random_ranks(random: &mut Random, split: &str) -> Definition {
    let mut tokens = bytes();
    for _ in 0..random.below(60) {
        let token = random.letters("abé", 7).into_bytes();
        if token.len() > 1 && !tokens.contains(&token) {
            let at = random.below(tokens.len() + 1);
            tokens.insert(at, token);
        }
    }
    definition(split, tokens, None, random.below(2) == 0)
}

/// Merges over a few letters; some make a token that another one makes too, some come twice, some never happen.
fn random_merges(random: &mut Random, split: &str) -> Definition {
    let mut tokens = bytes();
    let mut merges = vec![];
    for _ in 0..random.below(50) {
        let letters: Vec<u32> =
            (0..tokens.len() as u32).filter(|&i| i >= 256 || b"ab\xc3\xa9".contains(&(i as u8))).collect();
        let pair = [random.pick(&letters), random.pick(&letters)];
        let made = [&tokens[pair[0] as usize][..], &tokens[pair[1] as usize][..]].concat();
        if made.len() > 12 {
            continue;
        }
        if !tokens.contains(&made) {
            tokens.push(made);
        }
        merges.insert(random.below(merges.len() + 1), pair);
    }
    definition(split, tokens, Some(merges), random.below(4) == 0)
}

/// Words for the split `\S+|\s+`, of all lengths that are handled differently.
fn random_text(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..random.below(40) {
        let most = random.pick(&[3, 8, 15, 17, 40, 61, 64, 130, 300]);
        text += &random.letters("abé", most);
        text += random.pick(&[" ", "\n", ""]);
    }
    text
}

const SPLIT: &str = r"\S+|\s+";

#[test]
fn any_vocabulary_gives_the_ids_of_the_definition_whatever_the_cache_and_the_processor() {
    let mut random = Random(1);
    for round in 0..60 {
        let plain = random_vocabulary(&mut random, SPLIT, round % 2 == 0);
        let encoders = [(1, Best), (1, Avx2), (1, Portable), (5000, Best), (24 << 20, Best), (24 << 20, Avx2)]
            .map(|(cache_bytes, instructions)| encoder(&plain, cache_bytes, instructions));
        for _ in 0..6 {
            let text = random_text(&mut random);
            let want = plainly(&plain, &text);
            for encoder in &encoders {
                assert_eq!(encoder.encode(&text, &Special::Plain), Ok(want.clone()), "round {round}: {text:?}");
            }
        }
    }
}

/// Enough new words at once for many full groups of every length.
#[test]
fn thousands_of_new_words_give_the_ids_of_the_definition_with_all_instructions() {
    let mut random = Random(11);
    for round in 0..6 {
        let plain = random_vocabulary(&mut random, SPLIT, round % 2 == 0);
        let mut text = String::new();
        for _ in 0..6000 {
            let most = random.pick(&[4, 7, 8, 14, 15, 16, 22, 30, 31, 61, 62]);
            text += &random.letters("abé", most);
            text.push(' ');
        }
        let want = plainly(&plain, &text);
        for instructions in [Best, Avx2, Portable] {
            let encoder = encoder(&plain, 24 << 20, instructions);
            for pass in 0..2 {
                let found = encoder.encode(&text, &Special::Plain);
                assert!(found.as_ref() == Ok(&want), "round {round}, pass {pass}, {instructions:?}");
            }
        }
    }
}

#[test]
fn whole_documents_are_merged_as_one_word() {
    let mut random = Random(2);
    for round in 0..60 {
        let plain = random_vocabulary(&mut random, "none", round % 2 == 0);
        let encoder = encoder(&plain, 1 << 20, Best);
        let text = if round % 3 == 0 { random.letters("ab", 5) } else { random_text(&mut random) };
        let want = plainly(&plain, &text);
        assert_eq!(encoder.encode(&text, &Special::Plain), Ok(want), "round {round}: {text:?}");
    }
}

/// Runs of ideographs are cut where no token joins two of them, but a part is not the word that a token may be.
#[test]
fn a_part_of_a_word_is_not_taken_for_a_token_that_only_a_whole_word_can_be() {
    let mut random = Random(21);
    for round in 0..80 {
        let mut tokens = bytes();
        for _ in 0..random.below(12) {
            let token = random.letters("中文国人é", 4).into_bytes();
            if token.len() > 1 && !tokens.contains(&token) {
                tokens.push(token);
            }
        }
        for split in ["gpt2", "cl100k", "o200k", "qwen3.5"] {
            let plain = definition(split, tokens.clone(), None, round % 4 != 0);
            let encoders = [Best, Avx2, Portable].map(|instructions| encoder(&plain, 1 << 20, instructions));
            for _ in 0..4 {
                // One word, of one block or several.
                let most = random.pick(&[3, 12, 60, 200]);
                let text = random.letters("中文国人é", most);
                let want = plainly(&plain, &text);
                for encoder in &encoders {
                    assert_eq!(encoder.encode(&text, &Special::Plain), Ok(want.clone()), "{split}: {text}");
                }
            }
        }
    }
}

fn flat(texts: &[String]) -> (Vec<u8>, Vec<i64>) {
    let mut ends = vec![];
    let mut data = vec![];
    for text in texts {
        data.extend_from_slice(text.as_bytes());
        ends.push(data.len() as i64);
    }
    (data, ends)
}

fn options(threads: usize) -> Options<'static> {
    Options { bos: Some(1), eos: Some(2), special: &Special::Plain, threads }
}

#[test]
fn ids_are_the_same_for_any_number_of_threads_and_either_width() {
    let mut random = Random(3);
    let plain = random_merges(&mut random, SPLIT);
    let mut texts: Vec<String> = (0..3000).map(|_| random_text(&mut random)).collect();
    // A document that is drained while others wait for it.
    texts.insert(7, random.letters("ab ", 3 << 20));
    texts.insert(9, String::new());
    let (data, ends) = flat(&texts);
    let encoder = encoder(&plain, 1 << 20, Best);
    let one = encoder.documents::<u32>(&data, &ends, options(1), |_| vec![]).expect("ids");
    for threads in [2, 3, 8] {
        let many = encoder.documents(&data, &ends, options(threads), |_| vec![9; 5]).expect("ids");
        assert_eq!(many, one);
    }
    let (wide, id_ends) = one;
    let (narrow, narrow_ends) = encoder.documents::<u16>(&data, &ends, options(2), |_| vec![]).expect("ids");
    assert_eq!(narrow, wide.iter().map(|&id| id as u16).collect::<Vec<_>>());
    assert_eq!(narrow_ends, id_ends);
    let mut start = 0;
    for (text, &end) in texts.iter().zip(&id_ends) {
        let ids = &wide[start..end as usize];
        assert_eq!(ids.first().zip(ids.last()), Some((&1, &2)));
        assert_eq!(Ok(ids[1..ids.len() - 1].to_vec()), encoder.encode(text, &Special::Plain));
        start = end as usize;
    }
}

#[test]
fn the_first_broken_text_is_named_whatever_the_number_of_threads() {
    let plain = definition("gpt2", bytes(), None, true);
    let encoder = encoder(&plain, 1 << 20, Best);
    let mut data = vec![b'a'; 4 << 20];
    let ends: Vec<i64> = (1..=1024).map(|i| i * 4096).collect();
    data[700 * 4096 + 17] = 0xff;
    data[900 * 4096] = 0xc0;
    // A character that goes from one text into the next is broken in both.
    data[500 * 4096 - 1] = 0xc3;
    data[500 * 4096] = 0xa9;
    for threads in [1, 2, 7] {
        let error = encoder.documents::<u32>(&data, &ends, options(threads), |_| vec![]).expect_err("broken");
        assert!(error.to_string().starts_with("texts[499]: byte 4095 is 0xc3"), "{error}");
    }
}

/// Steps that the search for a long word takes.
fn steps(text: &str) -> (u64, usize) {
    let mut random = Random(5);
    // Every string of up to three letters, and longer runs.
    let mut tokens = bytes();
    for a in "abc".chars() {
        for b in "abc".chars() {
            tokens.push(format!("{a}{b}").into_bytes());
        }
    }
    for len in [3, 4, 6, 8, 16, 32, 64] {
        tokens.push("a".repeat(len).into_bytes());
        tokens.push(random.letters("abc", len).into_bytes());
    }
    tokens.sort_by_key(Vec::len);
    tokens.retain(|token| !token.is_empty());
    tokens.dedup();
    let mut seen = std::collections::HashSet::new();
    tokens.retain(|token| seen.insert(token.clone()));
    let plain = definition("none", tokens, None, true);
    let encoder = encoder(&plain, 1 << 20, Best);
    encoder.with_worker(|worker| worker.scratch.long.steps = 0);
    let ids = encoder.encode(text, &Special::Plain).expect("ids");
    (encoder.with_worker(|worker| worker.scratch.long.steps), ids.len())
}

#[test]
fn a_word_of_a_megabyte_takes_steps_in_proportion_to_its_length() {
    let mut random = Random(6);
    let random_letters: String = (0..1 << 20).map(|_| random.pick(&['a', 'b', 'c'])).collect();
    for text in ["a".repeat(1 << 20), "ab".repeat(1 << 19), "abc".repeat(1 << 18), random_letters] {
        let (steps, ids) = steps(&text);
        assert!(steps >= ids as u64 && steps <= 4 * text.len() as u64, "{steps} steps for {} bytes", text.len());
    }
}

/// Tokens of one byte, with these ids.
fn of_bytes(ids: impl Iterator<Item = u32>, steps: Vec<Step>, added: Vec<AddedToken>) -> Encoder {
    let plain = Definition { ids: ids.collect(), steps, added, ..definition("gpt2", bytes(), None, true) };
    encoder(&plain, 1 << 20, Best)
}

fn added(text: &str, id: u32) -> AddedToken {
    AddedToken {
        text: text.into(),
        id,
        special: true,
        normalized: false,
        single_word: false,
        left_strip: false,
        right_strip: false,
    }
}

#[test]
fn added_tokens_are_found_as_asked() {
    let list = vec![
        added("<s>", 300),
        added("<s><s>", 301),
        AddedToken { special: false, single_word: true, ..added("xy", 302) },
        AddedToken { left_strip: true, right_strip: true, ..added("<m>", 303) },
    ];
    let encoder = of_bytes(0..256, vec![], list);
    let encode = |text: &str, special: &Special| encoder.encode(text, special).expect("ids");
    let of = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert_eq!(encode("a<s>b", &Special::Plain), of("a<s>b"));
    assert_eq!(encode("a<s>b", &Special::Parse), [97, 300, 98]);
    assert_eq!(encode("<s><s><s>", &Special::Parse), [301, 300]);
    assert_eq!(encode("<s><s>", &Special::Set(vec!["<s>".into()])), [300, 300]);
    assert_eq!(encode("xy axy xy", &Special::Plain), [vec![302], of(" axy "), vec![302]].concat());
    assert_eq!(encode("a  <m> \n b", &Special::Parse), [97, 303, 98]);
    assert_eq!(encode("<m> <m>", &Special::Parse), [303, 303]);
    assert!(encoder.encode("", &Special::Set(vec!["<t>".into()])).is_err());
}

/// BPE over characters; ids count from 0, and unknown characters are 1000 and their bytes.
fn characters(tokens: &[&str], merges: Option<Vec<[u32; 2]>>) -> Definition {
    let kind = Kind::Characters { of_bytes: Some((1000..1256).collect()), unknown: 999, fuse: false };
    let ids = (0..tokens.len() as u32).collect();
    let tokens = tokens.iter().map(|token| token.as_bytes().to_vec()).collect();
    Definition { kind, tokens, ids, merges, steps: vec![], added: vec![], prefix: Prefix::Never }
}

#[test]
fn characters_of_any_script_give_the_ids_of_the_definition() {
    let mut random = Random(7);
    for _ in 0..60 {
        let letters = "一个数。aé\u{2581}𠀀";
        let mut tokens: Vec<String> = letters.chars().map(String::from).collect();
        for _ in 0..random.below(12) {
            let token = random.letters(letters, 4);
            if token.chars().count() > 1 && !tokens.contains(&token) {
                tokens.push(token);
            }
        }
        let plain = characters(&tokens.iter().map(String::as_str).collect::<Vec<_>>(), None);
        let encoder = encoder(&plain, 1 << 20, Best);
        for most in [3, 12, 90, 400] {
            // Mostly ideographs, of which one has no token; and a few of all kinds.
            let text = random.letters("一个数据。一个数据。一个数据。a é\n\u{2581}𠀀𠀁", most);
            assert_eq!(encoder.encode(&text, &Special::Plain), Ok(plainly(&plain, &text)), "{tokens:?} {text:?}");
        }
    }
}

#[test]
fn a_space_without_a_token_is_the_bytes_of_its_sentencepiece_character() {
    let encoder = encoder(&characters(&["a"], None), 1 << 20, Best);
    assert_eq!(encoder.encode("a a\u{2581}", &Special::Plain), Ok(vec![0, 1226, 1150, 1129, 0, 1226, 1150, 1129]));
}

#[test]
fn a_token_with_an_unknown_character_changes_nothing_beside_it() {
    // As `</s>` may be in a vocabulary that was learnt from texts without `<`, `/` or `>`.
    let plain = characters(&["s", "a", "</s>", "</", "s>", "sa"], Some(vec![[0, 1], [3, 4]]));
    let encoder = encoder(&plain, 1 << 20, Best);
    assert_eq!(encoder.encode("sa</sa>s>", &Special::Plain), Ok(vec![5, 1060, 1047, 5, 1062, 0, 1062]));
    // Without a list of merges SentencePiece makes such tokens.
    let error = characters(&["s", "s>"], None).encoder(1 << 20, Best).err().expect("it is refused").to_string();
    assert!(error.contains("\"s>\""), "{error}");
    assert!(characters(&["s", "</s>"], None).encoder(1 << 20, Best).is_ok(), "no two of its characters are a token");
}

#[test]
fn ids_of_any_size_are_written_as_they_are() {
    for most in [(1 << 20) + 2, (1 << 24) + 2, u32::MAX] {
        let encoder = of_bytes((0..256).map(|byte| most - byte), vec![], vec![]);
        for word in ["\0\u{1}\u{2}\u{3}", "\0", "\0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}"] {
            let want: Vec<u32> = word.bytes().map(|byte| most - u32::from(byte)).collect();
            assert_eq!(encoder.encode(&format!("{word}{word}"), &Special::Plain), Ok(want.repeat(2)));
        }
    }
}

#[test]
fn special_tokens_are_asked_for_as_the_vocabulary_writes_them() {
    let list = vec![AddedToken { normalized: true, ..added("<S>", 300) }];
    let encoder = of_bytes(0..256, vec![Step::Form(Form::Lowercase)], list);
    assert_eq!(encoder.encode("a<s><S>", &Special::Set(vec!["<S>".into()])), Ok(vec![97, 300, 300]));
    assert!(encoder.encode("", &Special::Set(vec!["<s>".into()])).is_err());
}
