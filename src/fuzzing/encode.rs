//! The encoder against the definition: any vocabulary, any options, any documents.

use super::definition::{Definition, Kind};
use super::pretoken::splits;
use super::{Input, letters};
use crate::encode::{AddedToken, Encoder, Form, Instructions, Options, Prefix, Special, Step};

/// Few letters each, so that merges happen: one to four bytes long, with spaces and without, with case and marks.
const ALPHABETS: [&str; 10] = [
    "ab",
    "abc ",
    "a\u{e9} ",
    "a\u{4e2d}\u{56fd}",
    "a\u{2581} b",
    "aAe\u{c9}\u{301} ",
    "'sS1 \n",
    "\u{1f600}a\u{301}\n",
    "\u{4e2d}\u{56fd}\u{4eba}\u{30a2}\u{30fb}A",
    "\u{d55c}\u{ae00}\u{915}\u{93f}\u{431}\u{411} ",
];

/// Characters that stand in texts beside those of the alphabet.
const OTHERS: &str = " \n_1'A\u{2581}\u{e9}\u{301}\u{4e2d}\u{1f600}\u{3000}\0z";

/// Bytes in all documents of an input, and in one: the definition takes time in proportion to the square.
const MOST_BYTES: usize = 1600;
const MOST_DOCUMENTS: usize = 12;

/// The first text of this number of bytes makes the encoder build its tables for long words.
const LONG_WORD: usize = (64 << 10) + 1;

/// Compares the encoder with the definition for a vocabulary, options and documents read from `data`.
pub fn encode(data: &[u8]) {
    let mut input = Input(data);
    let case = Case::read(&mut input);
    let encoder = match case.definition.encoder(case.cache_bytes, case.instructions) {
        Ok(encoder) => encoder,
        Err(error) => return assert!(case.may_be_refused(), "{error} {case}"),
    };
    let documents = case.documents(&mut input);
    let want: Vec<Option<Vec<u32>>> = documents.iter().map(|document| case.want(document)).collect();
    if case.long_tables {
        let letter = case.alphabet[0].as_str();
        let ids = encoder.encode(&letter.repeat(LONG_WORD.div_ceil(letter.len())), &Special::Plain);
        assert!(ids.is_ok_and(|ids| !ids.is_empty()), "{case}");
    }
    for (document, want) in documents.iter().zip(&want) {
        if let (Ok(text), Some(want)) = (str::from_utf8(document), want) {
            assert_eq!(encoder.encode(text, &case.special).as_ref(), Ok(want), "{text:?} {case}");
        }
    }
    if case.cache_bytes < 1 << 20 {
        let ids = encoder.encode(&case.many_words(), &Special::Plain);
        assert!(ids.is_ok_and(|ids| !ids.is_empty()), "{case}");
    }
    case.check_documents(&encoder, &documents, &want);
}

struct Case {
    definition: Definition,
    alphabet: Vec<String>,
    /// Letters of the alphabet, added tokens, and others.
    pieces: Vec<String>,
    special: Special,
    bos: Option<u32>,
    eos: Option<u32>,
    narrow: bool,
    threads: usize,
    chunk: usize,
    cache_bytes: usize,
    instructions: Instructions,
    long_tables: bool,
}

impl Case {
    fn read(input: &mut Input) -> Case {
        let alphabet = letters(ALPHABETS[input.below(ALPHABETS.len())]);
        let added = added(input, &alphabet);
        let texts = |tokens: &[AddedToken]| tokens.iter().map(|token| token.text.clone()).collect::<Vec<_>>();
        let special: Vec<AddedToken> = added.iter().filter(|token| token.special).cloned().collect();
        let special = match input.below(4) {
            0 | 1 => Special::Parse,
            2 => Special::Plain,
            _ => Special::Set(texts(&special[..input.below(special.len() + 1)])),
        };
        let pieces = [alphabet.clone(), alphabet.clone(), texts(&added), letters(OTHERS)].concat();
        let marks = input.byte();
        Case {
            special,
            bos: (marks & 1 != 0).then_some(1),
            eos: (marks & 2 != 0).then_some(2),
            narrow: marks & 4 != 0,
            instructions: *[Instructions::Best, Instructions::Avx2, Instructions::Portable]
                .get(usize::from(marks >> 3 & 3))
                .unwrap_or(&Instructions::Best),
            long_tables: input.once_in(8),
            threads: 1 + input.below(4),
            chunk: *input.pick(&[1, 16, 100, 256 << 10]),
            cache_bytes: *input.pick(&[1, 5000, 100_000, 24 << 20]),
            definition: definition(input, &alphabet, added),
            alphabet,
            pieces,
        }
    }

    /// Whether the encoder need not take the vocabulary: added tokens that vanish or that another one would strip; ranks
    /// of tokens with a character that is none.
    fn may_be_refused(&self) -> bool {
        let Definition { tokens, merges, added, .. } = &self.definition;
        let strips = added.iter().any(|token| token.right_strip);
        let spelled = |token: &AddedToken| match token.normalized {
            true => self.definition.normalize(&token.text),
            false => token.text.clone(),
        };
        let is_token = |c: char| tokens.iter().any(|token| token == c.to_string().as_bytes());
        added.iter().map(spelled).any(|text| text.is_empty() || strips && text.starts_with(char::is_whitespace))
            || matches!(self.definition.kind, Kind::Characters { .. })
                && merges.is_none()
                && !tokens.iter().all(|token| String::from_utf8_lossy(token).chars().all(is_token))
    }

    /// Documents of known letters, and now and then of any bytes.
    fn documents(&self, input: &mut Input) -> Vec<Vec<u8>> {
        let mut documents = vec![];
        let mut room = MOST_BYTES;
        while !input.is_empty() && documents.len() < MOST_DOCUMENTS && room > 0 {
            let document = match input.below(16) {
                kind if kind == 13 || self.long_tables && kind < 8 => {
                    let word = self.word(input.below(1 << 16), 513 + input.below(300));
                    word.into_bytes()
                }
                14 => input.any_text(room.min(40)).into_bytes(),
                15 => {
                    let len = input.below(40);
                    input.raw(room.min(len)).to_vec()
                }
                _ => input.text(&self.pieces, room, true).into_bytes(),
            };
            room = room.saturating_sub(document.len());
            documents.push(document);
        }
        documents
    }

    /// A word of `len` letters, other ones for each `seed`.
    fn word(&self, seed: usize, len: usize) -> String {
        let letters: Vec<&String> = self.alphabet.iter().filter(|letter| letter.trim() == *letter).collect();
        let mut state = seed as u64;
        let next = |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            letters[(state >> 33) as usize % letters.len()].as_str()
        };
        (0..len).map(next).collect()
    }

    /// So many words of more than 15 bytes that they drive what is kept of earlier ones out of a small cache.
    fn many_words(&self) -> String {
        (0..200).map(|seed| self.word(seed, 16 + seed % 16) + " ").collect()
    }

    /// None if it is not valid UTF-8.
    fn want(&self, document: &[u8]) -> Option<Vec<u32>> {
        let wanted = |token: &AddedToken| match &self.special {
            Special::Plain => false,
            Special::Parse => true,
            Special::Set(texts) => texts.contains(&token.text),
        };
        match str::from_utf8(document) {
            Ok(text) => Some(self.definition.encode(text, &wanted)),
            Err(_) => self.definition.encode_raw(document, &wanted),
        }
    }

    /// All documents in one call, twice: the second time on warm caches.
    fn check_documents(&self, encoder: &Encoder, documents: &[Vec<u8>], want: &[Option<Vec<u32>>]) {
        let data = documents.concat();
        let ends = |lens: &mut dyn Iterator<Item = usize>| -> Vec<i64> {
            lens.scan(0, |end, len| {
                *end += len as i64;
                Some(*end)
            })
            .collect()
        };
        let data_ends = ends(&mut documents.iter().map(Vec::len));
        let options = Options { bos: self.bos, eos: self.eos, special: &self.special, threads: self.threads };
        let broken = want.iter().position(Option::is_none);
        let marked =
            |ids: &Vec<u32>| -> Vec<u32> { self.bos.into_iter().chain(ids.iter().copied()).chain(self.eos).collect() };
        let marked: Vec<Vec<u32>> = want.iter().flatten().map(marked).collect();
        for _ in 0..2 {
            let got = if self.narrow {
                let got = encoder.documents_in_chunks::<u16>(&data, &data_ends, options, self.chunk, |_| vec![]);
                got.map(|(ids, ends)| (ids.into_iter().map(u32::from).collect(), ends))
            } else {
                encoder.documents_in_chunks::<u32>(&data, &data_ends, options, self.chunk, |_| vec![])
            };
            match (got, broken) {
                (Err(error), _) if self.narrow && encoder.largest_id() > u32::from(u16::MAX) => {
                    assert!(error.to_string().contains("16 bits"), "{error} {self}");
                }
                (Err(error), Some(broken)) => {
                    assert!(error.to_string().starts_with(&format!("texts[{broken}]: byte ")), "{error} {self}");
                }
                (Ok((ids, id_ends)), None) => {
                    assert_eq!(ids, marked.concat(), "{documents:?} {self}");
                    assert_eq!(id_ends, ends(&mut marked.iter().map(Vec::len)), "{self}");
                }
                (got, broken) => panic!("{got:?}, and document {broken:?} is broken: {documents:?} {self}"),
            }
        }
    }
}

/// What is needed to see why an input failed: everything but the single bytes.
impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Definition { kind, tokens, merges, steps, added, prefix, .. } = &self.definition;
        match kind {
            Kind::Bytes { split, whole_words } => {
                write!(f, "\nbytes, whole words {whole_words}, split {:?}", split.patterns())?;
            }
            Kind::Characters { of_bytes, fuse, .. } => {
                write!(f, "\ncharacters, unknown ones as bytes {}, fused {fuse}", of_bytes.is_some())?;
            }
        }
        let shown = |token: &[u8]| String::from_utf8(token.to_vec()).unwrap_or_else(|_| format!("{token:x?}"));
        let tokens = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
        let tokens: Vec<(usize, String)> = tokens.map(|(index, token)| (index, shown(token))).collect();
        writeln!(f, "\ntokens {tokens:?}\nmerges {merges:?}\nadded {added:?}")?;
        writeln!(f, "steps {steps:?}, prefix {prefix:?}, special {:?}", self.special)?;
        writeln!(f, "threads {}, chunk {}, cache {}", self.threads, self.chunk, self.cache_bytes)?;
        write!(f, "instructions {:?}, narrow {}, long tables {}", self.instructions, self.narrow, self.long_tables)
    }
}

fn added(input: &mut Input, alphabet: &[String]) -> Vec<AddedToken> {
    let pieces = [alphabet, &letters("<>A ")].concat();
    let mut added: Vec<AddedToken> = vec![];
    for _ in 0..input.below(8).saturating_sub(3) {
        let text: String = (0..1 + input.below(3)).map(|_| input.pick(&pieces).as_str()).collect();
        let flags = input.byte();
        if added.iter().any(|token| token.text == text) {
            continue;
        }
        added.push(AddedToken {
            text,
            id: 50_000 + added.len() as u32,
            special: flags & 1 != 0,
            normalized: flags & 2 != 0,
            single_word: flags & 12 == 12,
            left_strip: flags & 0x30 == 0x30,
            right_strip: flags & 0xc0 == 0xc0,
        });
    }
    added
}

fn steps(input: &mut Input) -> Vec<Step> {
    let replace = |old: &str, new: &str| Step::Replace(old.into(), new.into());
    match input.below(16) {
        8 => vec![Step::Form(Form::Nfc)],
        9 => vec![Step::Form(Form::Lowercase)],
        10 => vec![Step::Form(Form::Nfkc), Step::Form(Form::Lowercase)],
        11 => vec![Step::Form(Form::Nfd), Step::Form(Form::StripAccents)],
        12 => vec![Step::Form(Form::Nfkd)],
        13 => vec![replace("a", "bb"), Step::Form(Form::Nfc)],
        14 => vec![Step::Prepend("\u{2581}".into()), replace(" ", "\u{2581}")],
        15 => vec![replace("b", "")],
        _ => vec![],
    }
}

fn definition(input: &mut Input, alphabet: &[String], added: Vec<AddedToken>) -> Definition {
    let prefixes = [Prefix::Never, Prefix::First, Prefix::Always, Prefix::FirstUnlessSpace, Prefix::AlwaysUnlessSpace];
    let prefix = if input.once_in(2) { *input.pick(&prefixes) } else { Prefix::Never };
    let steps = steps(input);
    let options = input.byte();
    // Ids that are not indexes, some beyond the 20 bits that the cache packs.
    let (times, more) = *input.pick(&[(1, 0), (3, 7), (1, 65_200), (4500, 0), (14_000_000, 0)]);
    let id_of = |index: u32| index * times + more;
    let kind = match options & 1 == 0 {
        true => Kind::Bytes { split: input.pick(splits()).clone(), whole_words: options & 2 != 0 },
        false => Kind::Characters {
            of_bytes: (options & 2 != 0).then(|| (1000..1256).collect()),
            unknown: 999,
            fuse: options & 4 != 0,
        },
    };
    let bytes = matches!(kind, Kind::Bytes { .. });
    let mut tokens: Vec<Vec<u8>> = match bytes {
        true => (0..=255).map(|byte| vec![byte]).collect(),
        // U+2581 for a space; and now and then a letter has no token.
        false => alphabet
            .iter()
            .map(|letter| if letter == " " { "\u{2581}" } else { letter })
            .filter(|_| !input.once_in(16))
            .map(|letter| letter.as_bytes().to_vec())
            .collect(),
    };
    tokens.dedup();
    let mut distinct = std::collections::HashSet::new();
    tokens.retain(|token| distinct.insert(token.clone()));
    let merges = match options & 8 == 0 {
        true => {
            ranks(input, alphabet, bytes, &mut tokens);
            None
        }
        false => Some(merges(input, alphabet, &mut tokens)),
    };
    let ids = (0..tokens.len() as u32).map(id_of).collect();
    Definition { kind, tokens, ids, merges, steps, added, prefix }
}

/// Ranks in any order: parts may rank after what they make, and some tokens cannot be reached.
fn ranks(input: &mut Input, alphabet: &[String], bytes: bool, tokens: &mut Vec<Vec<u8>>) {
    let units: Vec<Vec<u8>> = match bytes {
        true => alphabet.concat().bytes().map(|byte| vec![byte]).collect(),
        // Also letters without a token.
        false => alphabet.iter().map(|letter| letter.replace(' ', "\u{2581}").into_bytes()).collect(),
    };
    let anywhere = input.once_in(2);
    for _ in 0..input.below(40) {
        if units.is_empty() {
            return;
        }
        // Of two tokens, so that there are long ones, or of letters.
        let token = match input.below(4) {
            0 => (0..2 + input.below(5)).flat_map(|_| input.pick(&units).clone()).collect(),
            _ => {
                let many = tokens.iter().skip(if bytes { 256 } else { 0 }).chain(&units).collect::<Vec<_>>();
                [input.pick(&many).as_slice(), input.pick(&many).as_slice()].concat()
            }
        };
        // After its parts, as in real vocabularies, or anywhere.
        let at = if anywhere && input.once_in(2) { input.below(tokens.len() + 1) } else { tokens.len() };
        if token.len() > 1 && token.len() <= 40 && !tokens.contains(&token) {
            tokens.insert(at, token);
        }
    }
}

/// Merges of any two tokens; some make a token that another one makes too, some come twice, some never happen.
fn merges(input: &mut Input, alphabet: &[String], tokens: &mut Vec<Vec<u8>>) -> Vec<[u32; 2]> {
    let letters = alphabet.concat().replace(' ', " \u{2581}").into_bytes();
    let mut merges = vec![];
    let anywhere = input.once_in(2);
    for _ in 0..input.below(40) {
        // A single byte that no text has is no use.
        let useful: Vec<u32> =
            (0..).zip(tokens.iter()).filter(|(_, t)| t.len() > 1 || letters.contains(&t[0])).map(|(i, _)| i).collect();
        if useful.is_empty() {
            return merges;
        }
        let pair = [*input.pick(&useful), *input.pick(&useful)];
        let made = pair.map(|token| tokens[token as usize].as_slice()).concat();
        if made.len() > 40 {
            continue;
        }
        if !tokens.contains(&made) {
            tokens.push(made);
        }
        let at = if anywhere && input.once_in(2) { input.below(merges.len() + 1) } else { merges.len() };
        merges.insert(at, pair);
    }
    merges
}
